"""``hf-posenc show``: files, output, exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_posenc import load_starter

pytest.importorskip("matplotlib", reason="an extra")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_scheme_is_the_only_required_argument(call: Callable, here: Path) -> None:
    answer = call("show", "rope")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "Written to pictures/rope-clock.png\n"
    assert (here / "pictures" / "rope-clock.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_instead_of_and_with_a_plot(call: Callable, here: Path) -> None:
    words = ("show", "yarn", "pi:factor=2", "-p", "frequencies", "--factor", "8", "--set", "head_dim=8", "--json")
    answer = call(*words)
    assert answer.code == 0
    (found,) = answer.data
    assert [scheme["label"] for scheme in found["schemes"]] == ["yarn", "pi:factor=2"]
    before = found["schemes"][0]["numbers"]["before"]
    yarn, pi = ([b / a for b, a in zip(before, one["numbers"]["after"][""], strict=True)] for one in found["schemes"])
    assert pi == pytest.approx([2.0] * 4)
    assert yarn[0] == 1.0
    assert yarn[-1] == pytest.approx(8.0)
    assert found["files"] == []
    assert not list(here.iterdir())
    assert call(*words, "--out", "s.svg").data[0]["files"] == ["s.svg"]


def test_a_model_is_shown_as_it_is(call: Callable) -> None:
    """GPT-2's own table."""
    answer = call("show", "learned", "-m", "starter:gpt2", "-p", "code", "-l", "6", "--json")
    assert answer.code == 0, answer.err
    (scheme,) = answer.data[0]["schemes"]
    assert scheme["numbers"]["code"] == load_starter("gpt2")[0].transformer.wpe.weight[:6].tolist()


def test_listed_plots_are_those_that_the_scheme_has(call: Callable) -> None:
    every = [row["name"] for row in call("show", "--list", "--json").data]
    mine = [row["name"] for row in call("show", "alibi", "--list", "--json").data]
    assert {"code", "clock", "distance", "visible"} <= set(every)
    assert mine == ["bias", "bias_curve", "score", "score_curve"]
    assert "Bias against distance" in call("show", "alibi", "--list").out
