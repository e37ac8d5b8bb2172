"""The search for LongRoPE's factors beats one uniform factor, never gets worse, and resumes."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from hf_posenc import load_starter, patch_model, unpatch_model
from hf_posenc.errors import (
    CheckpointMismatch,
    LengthContradiction,
    MissingPackage,
    NotPatched,
    OptionOutOfRange,
)
from hf_posenc.eval.texts.stdlib_source import module_text
from hf_posenc.training.longrope_search import corrected, search_longrope

pytest.importorskip("cma", reason="the search needs pycma, an extra")
TRAINED, FACTOR = 256, 2


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=48, vocab_size=60,
        max_position_embeddings=16,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def ids(rows: int = 2, length: int = 32) -> Tensor:
    return torch.randint(0, 60, (rows, length), generator=torch.Generator().manual_seed(0))


def texts(tokenizer: Any, module: str, count: int, length: int) -> Tensor:
    tokens = torch.tensor(tokenizer(module_text(module), add_special_tokens=False, verbose=False)["input_ids"])
    return torch.stack([tokens[start : start + length] for start in range(0, count * length, length)])


@torch.no_grad()
def loss_beyond(model: Any, rows: Tensor) -> float:
    """Cross-entropy loss (nats/token) at positions past the trained length, from the logits of whole texts."""
    logits = model(rows).logits[:, TRAINED:-1].flatten(0, 1)
    return float(torch.nn.functional.cross_entropy(logits, rows[:, TRAINED + 1 :].flatten()))


def test_beats_the_uniform_factor() -> None:
    """On the text it was found on and on another, in a trained model."""
    model, tokenizer = load_starter("llama")
    rows, other = (texts(tokenizer, module, 2, FACTOR * TRAINED) for module in ("argparse", "mailbox"))
    result = search_longrope(model, rows, factor=FACTOR, budget=9)
    assert len(result.history) == 9
    assert result.loss == min(result.history)
    assert result.loss < min(result.uniform_loss, result.history[1]) - 0.01  # nats; better than NTK too
    assert all(1 <= a <= b for a, b in pairwise(result.long_factor))
    losses = {}
    for name, factors in {"found": result.long_factor, "uniform": [float(FACTOR)] * len(result.long_factor)}.items():
        patch_model(model, "longrope", factor=FACTOR, long_factor=factors)
        losses[name] = loss_beyond(model, rows), loss_beyond(model, other)
        unpatch_model(model)
    assert losses["found"][0] == pytest.approx(result.loss, abs=1e-4)
    assert losses["uniform"][0] == pytest.approx(result.uniform_loss, abs=1e-4)
    assert losses["found"][1] < losses["uniform"][1] - 0.01


def test_a_stopped_search_goes_on(tmp_path: Path) -> None:
    """Same draws, same losses, nothing measured twice."""
    whole = search_longrope(tiny(), ids(), factor=2, budget=14)
    state = tmp_path / "state.json"

    def stop(number: int, loss: float, best: float) -> None:
        if number == 6:
            raise KeyboardInterrupt

    model = tiny()
    with pytest.raises(KeyboardInterrupt):
        search_longrope(model, ids(), factor=2, budget=14, state=state, progress=stop)
    with pytest.raises(NotPatched):
        unpatch_model(model)  # it was given back
    stored = json.loads(state.read_text())
    assert len(stored["losses"]) == 6
    assert stored["best"]["loss"] == min(stored["losses"])
    reads = []
    model.register_forward_hook(lambda *_: reads.append(1))
    resumed = search_longrope(model, ids(), factor=2, budget=14, state=state)
    assert resumed == whole
    assert len(reads) == (14 - 6) * 2  # texts
    assert search_longrope(tiny(), ids(), factor=2, budget=14, seed=1) != whole  # control


def test_another_search_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    search_longrope(tiny(), ids(), factor=2, budget=3, state=state)
    with pytest.raises(CheckpointMismatch, match="seed=0, this one has 1"):
        search_longrope(tiny(), ids(), factor=2, budget=3, seed=1, state=state)
    with pytest.raises(CheckpointMismatch, match="tokens"):
        search_longrope(tiny(), ids(rows=1), factor=2, budget=3, state=state)
    other = tiny()
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    with pytest.raises(CheckpointMismatch, match="model"):
        search_longrope(other, ids(), factor=2, budget=3, state=state)


def test_a_state_that_names_no_model_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    search_longrope(tiny(), ids(), factor=2, budget=3, state=state)
    stored = json.loads(state.read_text())
    del stored["settings"]["model"]
    state.write_text(json.dumps(stored))
    with pytest.raises(CheckpointMismatch, match="model=None"):
        search_longrope(tiny(), ids(), factor=2, budget=3, state=state)


def test_numpy_draws_are_left_alone() -> None:
    np.random.seed(7)
    expected = np.random.RandomState(7).rand()
    search_longrope(tiny(), ids(), factor=2, budget=8)
    assert np.random.rand() == expected


@given(st.lists(st.floats(1, 64), min_size=1, max_size=64), st.lists(st.floats(-3, 3), min_size=1, max_size=8))
def test_corrections_are_factors(start: list[float], knots: list[float]) -> None:
    """At least 1 and never falling, whatever is drawn; nothing drawn leaves a seed as it is."""
    seed = tuple(sorted(start))
    found = corrected(seed, np.array(knots))
    assert len(found) == len(seed)
    assert found[0] >= 1
    assert all(a <= b for a, b in pairwise(found))
    assert corrected(seed, np.zeros(len(knots))) == pytest.approx(seed, rel=1e-12)


@pytest.mark.parametrize("length", [17, 33])
def test_texts_of_other_lengths_are_refused(length: int) -> None:
    with pytest.raises(LengthContradiction, match="18 to 32 tokens"):
        search_longrope(tiny(), ids(length=length), factor=2)


@pytest.mark.parametrize(("name", "value", "least"), [("budget", 2, 3), ("budget", "x", 3), ("knots", 0, 1)])
def test_numbers_out_of_range_are_refused(name: str, value: Any, least: int) -> None:
    with pytest.raises(OptionOutOfRange, match=f"{name} must be a whole number of at least {least}"):
        search_longrope(tiny(), ids(), factor=2, **{name: value})


@pytest.mark.parametrize("content", ["{", "[]", '{"settings": 3}', '{"settings": {}, "losses": 3}', "\udcff"])
def test_a_damaged_state_is_refused(content: str, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointMismatch, match=r"Restore the file, or choose another one"):
        search_longrope(tiny(), ids(), factor=2, budget=3, state=state)
    assert state.read_bytes() == content.encode("utf-8", "surrogateescape")  # kept


def test_factors_are_one_for_each_rotated_pair() -> None:
    """GPT-NeoX rotates part of a head."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=48, vocab_size=60,
        max_position_embeddings=16, rotary_pct=0.5,
    )  # fmt: skip
    result = search_longrope(GPTNeoXForCausalLM(config).eval(), ids(), factor=2, budget=4)
    assert len(result.long_factor) == 4  # of 8 pairs in a head
    assert result.loss <= result.uniform_loss


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(MissingPackage, match="pip install"):
        search_longrope(tiny(), ids(), factor=2, budget=4)
