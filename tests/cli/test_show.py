"""``hf-posenc show``: files, output, exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hf_posenc

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
    words = ("show", "yarn", "pi:factor=2", "-p", "frequencies", "--factor", "8", "--shape", "head_dim=8", "--json")
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


@pytest.fixture
def trained(here: Path) -> str:
    """The folder of a checkpoint that carries T5's bias, every number of which is 5."""
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip
    model = hf_posenc.patch_model(LlamaForCausalLM(config), "t5")
    with torch.no_grad():
        for parameter in hf_posenc.scheme_of(model).parameters():
            parameter.fill_(5.0)
    model.save_pretrained(here / "trained")
    return "trained"


def test_the_scheme_that_a_checkpoint_carries_is_shown_as_it_was_trained(call: Callable, trained: str) -> None:
    words = ("-m", trained, "-p", "bias_curve", "-l", "6", "--json")
    named = call("show", "t5", *words)
    assert named.code == 0, named.err
    (scheme,) = named.data[0]["schemes"]
    assert scheme["label"] == "t5"
    bias = [value for row in scheme["numbers"]["bias"] for value in row]
    assert set(bias) == {5.0}
    assert call("show", *words).data[0]["schemes"] == [scheme]
    listed = call("show", "-m", trained, "--list", "--json")
    assert "bias_curve" in [row["name"] for row in listed.data]


def test_listed_plots_are_those_that_the_scheme_has(call: Callable) -> None:
    every = [row["name"] for row in call("show", "--list", "--json").data]
    mine = [row["name"] for row in call("show", "alibi", "--list", "--json").data]
    assert {"code", "clock", "distance", "grid", "visible"} <= set(every)
    assert mine == ["bias", "bias_curve", "score", "score_curve"]
    assert "Bias against distance" in call("show", "alibi", "--list").out
