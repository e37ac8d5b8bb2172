"""Demonstrations: numbers against formulas, and conclusions that follow from them."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import dog
import layernorm
import pytest
import torch
import window
from teaching import Table

from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import UnknownScheme
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import base_model_of

HEAVY = {"window"}  # reads a trained model; has tests of its own


FOLDER = Path(__file__).parents[2] / "examples" / "lessons"
NAMES = sorted({file.stem for file in FOLDER.glob("*.py")} - {"codes", "teaching", "tiny_models"})


class Told(NamedTuple):
    """What a lesson says."""

    shows: str
    tables: tuple[Table, ...]
    conclusion: str


def explain(name: str, schemes: Sequence[str] = ()) -> Told:
    return Told(*getattr(import_module(name), name).run(schemes))


@lru_cache(maxsize=64)
def found(name: str, *schemes: str) -> Told:
    return explain(name, schemes)


def row_of(finding: Told, first: str, table: int = 0) -> dict[str, Any]:
    chosen = finding.tables[table]
    return next(dict(zip(chosen.columns, row, strict=True)) for row in chosen.rows if row[0] == first)


@pytest.mark.parametrize("name", sorted(set(NAMES) - HEAVY))
def test_every_lesson_concludes_the_same_again(name: str) -> None:
    assert found(name).conclusion.endswith(".")
    assert found(name) == explain(name)  # nothing is drawn without a seed


def test_a_script_prints_its_tables() -> None:
    run = subprocess.run([sys.executable, FOLDER / "binary.py"], capture_output=True, text=True, check=True)
    assert "127 → 128" in run.stdout


def test_the_dogs_by_hand() -> None:
    """The same two numbers from the model itself: BERT with its table read as zeros."""
    model = tiny_model("bert")
    model.bert.embeddings.position_embeddings.weight.data.zero_()
    with torch.no_grad():
        result = model.bert(torch.tensor([[3, 4, 5, 6, 4]])).last_hidden_state[0]
    assert torch.allclose(result[1], result[4], atol=1e-6)
    rows = {(row[0].split()[0], row[1]): row[3] for row in found("dog").tables[0].rows}
    assert [key for key, same in rows.items() if same] == [("bert", "none")]
    assert "both dogs are one under none" in found("dog").conclusion
    assert "even without positions" in found("dog").conclusion  # of the decoder


def test_the_dogs_conclusion_follows_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were no scheme to have an effect, it would say so."""
    monkeypatch.setattr(dog, "patched_if_defined", lambda model, scheme: patch_model(tiny_model("bert"), "none"))
    result = explain("dog").conclusion
    assert "In the encoder both dogs are one under none, sinusoidal, learned, rope, alibi and t5." in result
    assert "distinguished" not in result


def test_other_schemes_on_request() -> None:
    rows = explain("dog", ["kerple", "rope+logn", "rerope"]).tables[0].rows
    assert {row[1] for row in rows if row[0].startswith("bert")} == {
        "none",
        "kerple",
        "rope+logn",
    }  # rerope has no BERT
    assert {row[1] for row in rows if row[0].startswith("llama")} == {"none", "kerple", "rope+logn", "rerope"}
    with pytest.raises(UnknownScheme, match="kerple"):
        explain("dog", ["kerpel"])


def test_without_positions_a_permutation_only_permutes() -> None:
    none, rope = (row_of(found("permutation"), scheme) for scheme in ("none", "rope"))
    assert all(value < 1e-5 for key, value in none.items() if key != "scheme")
    assert all(value > 1e-2 for key, value in rope.items() if key != "scheme")


def test_without_positions_both_sentences_are_translated_alike() -> None:
    assert [row[2] for row in found("translation").tables[0].rows] == [True, False, False]
    assert "With none in the encoder both sentences are translated alike" in found("translation").conclusion


def test_which_models_notice_the_order() -> None:
    rows = {row[0]: row[2] for row in found("readers").tables[0].rows}
    assert [name for name, knows in rows.items() if not knows] == [
        "a layer for each word",
        "an encoder without positions",
    ]


def test_equal_words_are_equal_but_for_codes() -> None:
    repeated = {row[0]: row[1] for row in found("constant").tables[0].rows}
    begun = {row[0]: row[2] for row in found("constant").tables[0].rows}
    assert max(repeated[scheme] for scheme in ("none", "rope", "alibi")) < 1e-5
    assert min(begun.values()) > 0.1
    assert repeated["sinusoidal"] > 0.1


def test_layernorm_takes_away_what_channels_share() -> None:
    moved = {(row[0], row[2]): row[3] for row in found("layernorm").tables[0].rows}
    assert max(value for (model, code), value in moved.items() if model != "llama" and "all" in code) < 1e-4
    assert min(value for (model, code), value in moved.items() if model == "llama" or "random" in code) > 1
    assert "lost behind LayerNorm and seen behind RMSNorm" in found("layernorm").conclusion


def test_layernorms_conclusion_follows_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were LayerNorm to see them, it would not say that nothing is left."""
    integer = {"direction": "random"}
    monkeypatch.setattr(layernorm, "CODES", {"integer in all channels": ("integer", integer)})
    assert "Nothing but rounding is left of none" in explain("layernorm").conclusion


def test_only_the_fourth_term_is_a_function_of_the_distance() -> None:
    rows = {row[0]: row[1:] for row in found("terms").tables[0].rows}
    assert rows["p p′"][1] == 0.0
    assert rows["p p′"][2] < 1e-5
    assert min(rows[name][2] for name in ("x x′", "x p′", "p x′")) > 1
    learned = explain("terms", ["learned"]).conclusion  # a table is no function of distance
    assert "a function of distance no term" in learned


def test_sine_alone_is_the_product_formula() -> None:
    """½ Σ [cos ω (i − j) − cos ω (i + j)]."""
    frequencies = 10_000.0 ** (-2 * torch.arange(64).double() / 128)
    row = row_of(found("sine"), "sine alone")
    for i, j in ((0, 5), (100, 105)):
        wanted = float(((frequencies * (i - j)).cos() - (frequencies * (i + j)).cos()).sum() / 2)
        assert row[f"⟨{i}, {j}⟩"] == pytest.approx(wanted, abs=1e-4)
    assert row["|p|² at 2"] == pytest.approx(float((2 * frequencies).sin().square().sum()), abs=1e-4)
    assert row_of(found("sine"), "sine and cosine")["|p|² at 2"] == pytest.approx(64, abs=1e-4)


def test_frequencies_are_read_off_the_fitted_matrix() -> None:
    for hand, radians, full_turns in found("shift").tables[1].rows:
        assert radians == pytest.approx(10_000.0 ** (-2 * hand / 128), rel=1e-4)
        assert full_turns == pytest.approx(2 * math.pi / radians)
    assert len(found("shift").tables) == 2  # none for binary, which has no such matrix
    assert "binary: no matrix does" in found("shift").conclusion


def test_bits_that_change_from_one_binary_code_to_the_next() -> None:
    assert "11111100" in found("binary").shows  # 252
    steps = {row[0]: row[1] for row in found("binary").tables[0].rows}
    assert steps == {"6 → 7": 1, "7 → 8": 4, "8 → 9": 1, "127 → 128": 8}
    assert [row[1] for row in found("binary").tables[1].rows] == [2 ** (n + 1) for n in range(7)]


def test_the_step_of_norm01_depends_on_the_length() -> None:
    rows = {(row[0], row[1]): row[2] for row in found("steps").tables[0].rows}
    assert rows["norm01", 3] == pytest.approx(0.5)
    assert rows["norm01", 4] == pytest.approx(1 / 3)
    assert rows["integer", 100] == pytest.approx(1.0)


def test_products_of_bases_are_the_cosine_sum() -> None:
    for name, base in (("base 100", 100.0), ("base 10 000", 10_000.0)):
        frequencies = base ** (-2 * torch.arange(64).double() / 128)
        for k in (1, 16, 256):
            assert row_of(found("base"), name)[f"k = {k}"] == pytest.approx(
                float((k * frequencies).cos().mean()), abs=1e-5
            )


def test_three_forms_of_rope_are_one() -> None:
    assert max(row[1] for row in found("rope").tables[0].rows) < 1e-5
    assert "only distance counts" in found("rope").conclusion


def test_patches_of_an_image() -> None:
    image, text = (row_of(found("grid"), scheme) for scheme in ("rope_nd", "rope"))
    together = "what rows and columns do together"
    assert image[together] < 1e-5 < 0.1 < text[together]
    left, above = "score of the patch to the left", "score of the row above's last patch"
    assert text[left] == pytest.approx(text[above], abs=1e-5)
    assert abs(image[left] - image[above]) > 0.1


def test_families_hold_every_scheme() -> None:
    rows = {row[0]: row[2].split(", ") for row in found("families").tables[0].rows}
    assert "sinusoidal" in rows["added to words"]
    assert "yarn" in rows["turns queries and keys"]
    assert "alibi" in rows["added to scores"]
    assert "alibi" not in rows["turns queries and keys"]
    assert "window" in rows["limits sight"]


@pytest.fixture(scope="module")
def on_a_trained_model() -> Told:
    return explain("window")


def test_window_mends_both_causes(on_a_trained_model: Told) -> None:
    columns = on_a_trained_model.tables[0].columns
    rows = {row[0]: dict(zip(columns, row, strict=True)) for row in on_a_trained_model.tables[0].rows}
    assert [rows[name]["farthest, in unscaled tokens"] for name in rows] == [255, 1023, 128, 255]
    assert [rows[name]["keys seen"] for name in rows] == [256, 1024, 1024, 256]
    entropy = {name: row["entropy, nats"] for name, row in rows.items()}
    assert entropy["rope"] > entropy["rerope"] > entropy["window"] + 0.1
    assert entropy["window"] == pytest.approx(entropy["as trained"], abs=0.2)
    assert rows["rope"]["loss, nats/token"] > rows["window"]["loss, nats/token"] + 1
    assert "neither is so under window" in on_a_trained_model.conclusion
    assert "a wider spread alone costs nothing under rerope" in on_a_trained_model.conclusion
    assert "No scheme here has new distances alone" in on_a_trained_model.conclusion


def test_what_one_cause_costs_follows_the_rows() -> None:
    """Were the loss lost under the scheme that has the spread alone, it would say so."""
    assert "alone costs the loss under rerope." in window.alone(
        "a wider spread", ["rope", "rerope"], ["rope"], ["rerope"]
    )
    assert "alone costs nothing under rerope." in window.alone("a wider spread", ["rope", "rerope"], ["rope"], ["rope"])
    assert "is not known" in window.alone("a wider spread", ["rope"], ["rope"], ["rope"])


def test_windows_numbers_are_the_models(on_a_trained_model: Told) -> None:
    """The loss at the trained length, from the unpatched model."""
    from hf_posenc.starters.loading import load_starter

    model, tokenizer = load_starter("llama")
    texts = window.long_texts(tokenizer, 1024)[:, -256:]
    with torch.no_grad():
        logits = model(texts).logits[:, -65:-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), texts[:, -64:].flatten())
    assert on_a_trained_model.tables[0].rows[0][5] == pytest.approx(float(loss), abs=1e-4)
    assert base_model_of(model)[0].config.max_position_embeddings == 256
