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


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "--list"), (["ropee"], "'rope'"), (["rope", "-p", "clok"], "'clock'"), (["rope", "-p", "bias"], "'bias'"),
        (["rope", "--out", "a.pdf"], ".svg"), (["rope", "--animate", "own", "--out", "a.png"], ".gif"),
        (["rope", "--animate", "speed"], "position"), (["rope", "--channels", "a"], "--channels"),
        (["rope", "-p", "clock", "--channels", "99"], "0 … 31"), (["alibi", "--head", "8"], "0 … 7"),
        (["rope", "--shape", "kind=lama"], "'llama'"), (["rope", "--shape", "head_dim=7"], "even"),
        (["rope", "--shape", "head=7"], "'heads'"), (["rope", "-m", "starter:llama", "--shape", "heads=4"], "--shape"),
        (["binary", "-p", "code", "--animate", "position"], "does not depend on position"),
        
        (["rope", "--factor", "0.5"], "at least 1"), (["rope", "-m", "starter:lama"], "'llama'"),
        (["rope", "-p", "score", "--length", "1"], "at least 2"),
        (["rope", "--trained-length", "4x"], "--trained-length is a whole number"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_invalid_arguments(call: Callable, here: Path, words: list[str], hint: str) -> None:
    answer = call("show", *words)
    assert answer.code == 2, answer.err
    assert hint in answer.err
    assert "Traceback" not in answer.err
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("rope", "-p", "clock", "--length", "8"), "length=8"),
        (("rope", "-p", "frequencies", "--head", "0"), "head=0"),
        (("rope", "alibi", "--layer", "1", "--json"), "--layer"),
        (("rope", "yarn", "-p", "clock", "--same-scale"), "--same-scale"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_option_that_no_plot_reads_is_refused(
    call: Callable, here: Path, words: tuple[str, ...], named: str
) -> None:
    answer = call("show", *words)
    assert (answer.code, answer.out) == (2, "")
    assert named in answer.err
    assert not list(here.iterdir())
