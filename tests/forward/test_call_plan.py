"""Layers of one forward pass share a plan: few Python calls a layer, results of separate plans, and nothing left."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import hf_posenc
import hf_posenc.patches
from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.core.context import PositionContext
from hf_posenc.forward import call_plan
from hf_posenc.forward.keys_in_reach import without_unwritten_keys
from hf_posenc.forward.positions import ForwardContext
from hf_posenc.forward.shared_terms import PER_LAYER, ReadsLayer

from ..small_models import llama

CONTEXT, CACHED = 64, 100
PACKAGE = [Path(module.__path__[0]) for module in (hf_posenc, hf_posenc.patches)]


ROTATIONS = {"rope": {}, "yarn": {"factor": 4}}
KEY_BIASES: dict[str, dict[str, Any]] = {"alibi": {}}
REMAPS = {"rerope": {}, "self_extend": {"factor": 4}, "dca": {"factor": 4}}
OPTIONS: dict[str, dict[str, Any]] = {**ROTATIONS, **KEY_BIASES, **REMAPS}


def text(length: int) -> Tensor:
    return torch.randint(0, 64, (1, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scheme", [*OPTIONS, "t5", "fox", "kerple", "deberta", "dynamic_ntk", "logn", "sinks"])
@torch.no_grad()
def test_a_shared_plan_changes_nothing(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same logits, bit by bit, as where every layer evaluates the scheme on its own."""
    model = patch_model(llama(max_position_embeddings=CONTEXT), scheme, **OPTIONS.get(scheme, {}))

    def logits() -> list[Tensor]:
        cache = DynamicCache(config=model.config)
        return [model(tokens, past_key_values=cache).logits for tokens in (text(CACHED), text(1), text(7))]

    shared = logits()
    monkeypatch.setattr(call_plan, "evaluate_shared", lambda plan, **others: None)
    assert all(torch.equal(one, two) for one, two in zip(shared, logits(), strict=True))


def calls_of_a_token(scheme: str, layers: int) -> int:
    """Python functions of this package that are called for one decoded token."""
    model, calls = llama(num_hidden_layers=layers, max_position_embeddings=CONTEXT), 0
    patch_model(model, scheme, **OPTIONS.get(scheme, {}))
    cache = DynamicCache(config=model.config)
    for tokens in (text(CACHED), text(1)):
        model(tokens, past_key_values=cache)

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and any(folder in Path(frame.f_code.co_filename).parents for folder in PACKAGE)

    sys.setprofile(count)
    try:
        model(text(1), past_key_values=cache)
    finally:
        sys.setprofile(None)
    return calls


def test_layers_with_other_slopes_within_a_window_share_no_table() -> None:
    ids = torch.randint(3, 90, (1, 60), generator=torch.Generator().manual_seed(0))
    found = []
    for backend in ("sdpa", "eager"):
        steep, flat = ([("alibi", {"bias_max": slope}), ("window", {"size": 20})] for slope in (8.0, 1.0))
        model = patch_model(tiny_model("llama"), steep, layers={"1": flat})
        model.set_attn_implementation(backend)
        with torch.no_grad():
            found.append(model(ids, use_cache=False).logits)
    assert float((found[0] - found[1]).abs().max()) < 1e-4  # of logits of about 1, in float32


@pytest.mark.parametrize("scheme", CALLS := {"yarn": 23, "alibi": 25, "rerope": 30, "dynamic_ntk": 35, "fire": 123})
@torch.no_grad()
def test_a_layer_makes_few_calls_for_a_decoded_token(scheme: str) -> None:
    """Counted, as time depends on what else a machine does; a tenth more than there were when this was written."""
    assert 0 < (calls_of_a_token(scheme, 6) - calls_of_a_token(scheme, 2)) / 4 <= CALLS[scheme]


def plans_of(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made, make = [], call_plan.make_plan
    monkeypatch.setattr(call_plan, "make_plan", lambda *args: made.append(make(*args)) or made[-1])
    model(text(20))
    return made


@pytest.mark.parametrize(("scheme", "shared"), [("yarn", True), ("t5", False), ("fox", False), ("deberta", False)])
def test_terms_with_a_gradient_belong_to_one_layer(scheme: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = patch_model(llama(), scheme, factor=4).train()
    plans = plans_of(model, monkeypatch)
    assert {plan.shared is not None for plan in plans} == {shared}


@pytest.mark.parametrize(
    "use",
    [
        lambda value: value.float(),
        lambda value: value + 1,
        lambda value: value % 4,
        lambda value: value in (1, 2),
        lambda value: [0, 1][value],
        lambda value: torch.relu(value),
        lambda value: torch.ones(3) * value,
    ],
)
def test_a_value_of_one_layer_cannot_be_used_for_all(use: Any) -> None:
    with pytest.raises(ReadsLayer):
        use(PER_LAYER)


@pytest.mark.parametrize("hidden", [None, 0, 3])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32], ids=str)
def test_empty_places_of_a_cache_are_left_out(kind: torch.dtype, hidden: int | None) -> None:
    positions = torch.arange(10)[None]
    ctx = PositionContext(positions[:, 5:6], positions, causal=True, contiguous=True)
    visible = torch.arange(10) <= 5
    if hidden is not None:
        visible[hidden] = False
    mask = visible if kind == torch.bool else torch.zeros(10).masked_fill(~visible, -1e30)
    found, cut = without_unwritten_keys(mask[None, None, None], ctx, 6)
    assert torch.equal(cut.key_positions, positions[:, :6])
    assert (found is None) == (hidden is None)
    assert found is None or torch.equal(found, mask[None, None, None, :6])


SCHEMES = ["rope", "yarn", "self_extend", "dca", "alibi", "t5", "kerple", "sandwich", "fire", "fox", "cope", "sinks",
           "dynamic_ntk", "longrope", "transformer_xl", "deberta", "logn", "xpos"]  # fmt: skip


def calls() -> list[object]:
    """What is left of any call in this process, those of other tests included."""
    return [one for one in gc.get_objects() if type(one) in (PositionContext, ForwardContext)]


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_no_state_remains_after_a_call(scheme: str) -> None:
    model = patch_model(tiny_model("llama"), scheme, factor=4)
    ids = torch.arange(70)[None] % 16
    gc.collect()
    before = calls()
    gc.disable()
    try:
        cache = model(ids, use_cache=True).past_key_values
        model(ids[:, :1], past_key_values=cache)
        left = [type(one).__name__ for one in calls() if not any(one is other for other in before)]
    finally:
        gc.enable()
    assert left == []
