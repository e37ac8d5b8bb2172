"""``hf-posenc properties``: one scheme in full, several side by side, low precision, JSON."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hf_posenc.insight.properties import list_properties


def test_one_scheme_explains_each_number(call: Callable) -> None:
    out = call("properties", "none").out
    assert "position does nothing to attention" in out
    assert all(one.question.split()[0] in out for one in list_properties())


def test_side_by_side(call: Callable) -> None:
    out = call("properties", "integer", "alibi").out
    line = next(line for line in out.splitlines() if line.startswith("Does it stay bounded"))
    assert "no: grows 64-fold" in line
    assert "no: grows 2.6e+02-fold" in line
    line = next(line for line in out.splitlines() if line.startswith("Does the score fall"))
    assert "no: rank correlation 1.00" in line
    assert "yes: rank correlation -1.00" in line


def test_many_schemes_have_answers_and_no_bare_numbers(call: Callable) -> None:
    out = call("properties", "integer", "alibi", "rope", "none", "norm01", "binary", "window").out
    line = next(line for line in out.splitlines() if line.startswith("alibi")).split()
    assert set(line[1:-2]) <= {"yes", "no", "—"}
    assert line[-2].endswith("%")


def test_as_json(call: Callable) -> None:
    data = call("properties", "sinusoidal,sinusoidal:kind=sin", "window", "--json").data
    assert list(data) == ["sinusoidal", "sinusoidal:kind=sin", "window"]
    assert data["sinusoidal"]["linear"]["holds"] is True
    assert data["sinusoidal:kind=sin"]["linear"]["holds"] is False
    assert data["window"]["linear"]["value"] == "inf"  # JSON has no number for it


def test_rounding_errors_at_far_positions(call: Callable) -> None:
    rows = call("properties", "integer", "--precision", "--json").data
    scores = {(row["kind"], row["start"]): row["scores"] for row in rows}
    assert scores["fp16", 1_000_000] == "inf"
    assert scores["fp32", 0] < 1e-5
    assert "positions in bfloat16" in call("properties", "none", "--precision").out


@pytest.mark.parametrize(("words", "hint"), [("roep", "'rope'"), ("rope --model llma", "'llama'")])
def test_an_unknown_name_is_answered_with_the_nearest(call: Callable, words: str, hint: str) -> None:
    answer = call("properties", *words.split())
    assert answer.code == 2
    assert answer.out == ""
    assert hint in answer.err


def test_a_scheme_that_is_not_defined_on_the_model_is_refused(call: Callable) -> None:
    assert "needs a decoder" in call("properties", "self_extend", "--model", "bert").err


def test_any_type_of_model_is_taken_that_has_a_list_of_schemes(call: Callable) -> None:
    """Each has its own kind of positions: a rotation in Qwen 3, none in BLOOM, in ModernBERT an encoder's."""
    qwen = call("properties", "rope", "alibi", "--model", "qwen3", "--json")
    assert qwen.code == 0, qwen.err
    assert qwen.data == call("properties", "rope", "alibi", "--model", "llama", "--json").data
    assert call("properties", "learned_hier", "--model", "opt").code == 0
    assert "not defined for this bloom model" in call("properties", "learned_hier", "--model", "bloom").err
    assert "needs a decoder" in call("properties", "self_extend", "--model", "modernbert").err
    assert call("properties", "yarn", "--model", "modernbert").code == 0


def test_help_ends_with_examples(call: Callable) -> None:
    lines = call("properties", "--help").out.rstrip().splitlines()
    examples = lines[lines.index("  Examples:") + 1 :]
    assert examples
    assert all(line.strip().startswith("hf-posenc properties") for line in examples)
