"""Context parallelism: a process computes for its part of a text what the whole text needs there.

torch's ring needs GPUs. So one pass over the whole text notes every call of attention, and a pass over each part stands
in for one process: it must call attention with its own rows of the same queries, keys and values, and gets its own rows
of the result. Every scheme does so exactly, or refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from hf_posenc import list_schemes, patch_model, scheme_of
from hf_posenc.errors import BackendCannotCarry, PosEncError
from hf_posenc.forward.engine_backend import supports_context_parallel

from .test_finetune import FACTOR, TRAINED, llama

LENGTH = TRAINED * FACTOR
QUARTER = LENGTH // 4
PARTS = [  # as torch deals them out to two processes: the first with the last, so that both have as much to do
    torch.cat((torch.arange(QUARTER), torch.arange(3 * QUARTER, LENGTH))),
    torch.arange(QUARTER, 3 * QUARTER),
]
SUPPORTED = {
    "abf", "binary", "clipped_rope", "drope", "host", "integer", "irope", "learned", "llama3", "llama4_temp",
    "logn", "mrope", "mrrope", "none", "ntk", "ntk_parts", "ntk_parts_v1", "partial", "pi", "pope", "proportional",
    "resonance", "rope", "rope_nd", "sinusoidal", "ssmax", "xpos", "yarn", "yarn+logn",
}  # fmt: skip
"""Schemes that rotate, scale, or add to embeddings, by a token's own position."""


def patched(scheme: str) -> PreTrainedModel:
    """A Llama in training, its masks dropped as accelerate drops them."""
    model = patch_model(llama(), scheme, factor=FACTOR).train()
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(unmasked, with_kwargs=True, prepend=True)
    return model


def unmasked(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """accelerate's own hook, `_attach_context_parallel_hooks`."""
    return args, {**kwargs, "attention_mask": None, "is_causal": True}


@contextmanager
def attention(function: Any) -> Iterator[None]:
    """``function`` in place of torch's."""
    own = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = function
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = own


def in_parts(model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """What is asked of the ring in every call, less what a whole text asks there; last the same of the logits."""
    calls: list[tuple[Any, ...]] = []
    own = functional.scaled_dot_product_attention

    def noted(*states: Tensor, **how: Any) -> Tensor:
        calls.append((states, how, own(*states, **how)))
        return calls[-1][2]

    with attention(noted):
        whole = model(ids, position_ids=torch.arange(LENGTH)[None]).logits
    deviations = []
    for part in PARTS:
        waiting = iter(calls)

        def ring(*states: Tensor, _part: Tensor = part, _waiting: Any = waiting, **how: Any) -> Tensor:
            expected, same, mixed = next(_waiting)
            assert how == same
            assert how["is_causal"]
            assert how["attn_mask"] is None
            deviations.extend(mine - all_rows[:, :, _part] for mine, all_rows in zip(states, expected, strict=True))
            return mixed[:, :, _part]

        ring.__module__ = "torch.distributed.tensor.experimental"
        with attention(ring):
            deviations.append(model(ids[:, part], position_ids=part[None]).logits - whole[:, part])
        assert next(waiting, None) is None
    return deviations


def names() -> list[str]:
    return [*(record.name for record in list_schemes()), "yarn+logn", "yarn+alibi"]


@pytest.mark.parametrize("scheme", names())
def test_a_scheme_is_computed_in_parts_or_refuses(scheme: str) -> None:
    ids = torch.randint(3, 32, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    try:
        model = patched(scheme)
    except PosEncError:
        pytest.skip("not a scheme for Llamas")
    assert supports_context_parallel(scheme_of(model)) == (scheme in SUPPORTED)  # as is said before a run
    if scheme not in SUPPORTED:
        with pytest.raises(BackendCannotCarry, match="whole texts"):
            in_parts(model, ids)
        return
    deviations = in_parts(model, ids)
    assert len(deviations) == 2 * (2 * 3 + 1)
    assert max(deviation.abs().max().item() for deviation in deviations) < 1e-5  # float32, sums in another order


def test_control_wrong_positions_of_a_part_are_noticed() -> None:
    """Parts that each count from 0."""
    model, ids = patched("yarn"), torch.randint(3, 32, (1, LENGTH))

    def from_zero(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return args, {**kwargs, "position_ids": torch.arange(kwargs["input_ids"].shape[1])[None]}

    model.model.register_forward_pre_hook(from_zero, with_kwargs=True, prepend=True)
    assert max(deviation.abs().max().item() for deviation in in_parts(model, ids)) > 1e-2


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is built without torch.distributed")
@pytest.mark.parametrize("scheme", ["alibi", "norm01", "randpos", "yarn"])
def test_torch_context_parallel_is_recognised(scheme: str) -> None:
    """The real one, of one process. Where it carries a scheme, torch itself ends the call: it has no ring for CPUs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    model, ids, positions = patched(scheme), torch.randint(3, 32, (1, LENGTH)), torch.arange(LENGTH)[None].clone()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        error = NotImplementedError if scheme in SUPPORTED else BackendCannotCarry
        parts = context_parallel(init_device_mesh("cpu", (1,)), buffers=[ids, positions], buffer_seq_dims=[1, 1])
        with parts, pytest.raises(error):
            model(ids, position_ids=positions)
    finally:
        torch.distributed.destroy_process_group()
    model(ids, position_ids=positions)  # and outside it nothing is refused
