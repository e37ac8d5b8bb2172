"""Ablation: switch off each term of a scheme in turn, and check that the patched layer's outputs change.

The unpatched model alone cannot show whether the scheme's codes, bias or scale reach the layer: removing the model's
own positions changes the outputs too. So the hooks of one term are replaced by neutral ones, and two results compared:

    formula   on random queries, keys and values, without the adapter: how much the term changes attention
    layer     the probe of the adapter: must change as well if the formula does

With all hooks neutral, nothing depends on positions any more, so outputs must not either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from hf_posenc.patching.reference_attention import attention_output, reference_terms
from hf_posenc.schemes.base import Scheme, overrides

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry

Hooks = Mapping[str, Callable[..., Any]]


def unprepared(scheme: Scheme, *states: Tensor) -> tuple[Tensor, ...]:
    """Queries and keys unchanged, but padded with zeros to the width that the scheme's rotation expects."""
    return tuple(functional.pad(state, (0, scheme.key_width - state.shape[-1])) for state in states)


HOOKS = (
    "embed", "rotation", "row_rotation", "regions", "bias", "values", "query_scale", "row_scale", "logit_scale",
    "visible", "sink",
)  # fmt: skip
NEUTRAL: Hooks = {**{name: getattr(Scheme, name) for name in HOOKS}, "prepare": unprepared}
"""The hooks of a scheme that overrides none, as functions of the scheme and the hook's arguments."""

TERMS: Mapping[str, tuple[str, ...]] = {
    "a rotation": ("rotation", "row_rotation", "regions"),  # regions may have rotations of their own
    "remapped positions": ("regions",),
    "a change of queries and keys": ("prepare",),
    "a bias of the scores": ("bias",),
    "a term of the values": ("values",),
    "a factor of the queries": ("query_scale",),
    "a factor of each query's logits": ("row_scale",),
    "a factor of the logits": ("logit_scale",),
    "a mask by distance": ("visible",),
    "an attention sink": ("sink",),
}
"""Each contribution of a scheme to attention, and the hooks that return it. Codes are added before attention."""


@contextmanager
def replaced(scheme: Scheme, hooks: Hooks) -> Iterator[None]:
    """Run the block with ``hooks`` in all parts of a scheme. Its own hooks and their cached answers are restored."""
    cached = [(memo, dict(memo)) for part in {scheme, *scheme.schemes} if (memo := vars(part).get("memo_of_options"))]
    for part in scheme.schemes:
        for name, hook in hooks.items():
            setattr(part, name, partial(hook, part))
    try:
        yield
    finally:
        for part in scheme.schemes:
            for name in hooks:
                delattr(part, name)
            part.training = part.training  # any assignment discards cached answers, here those of the replaced hooks
        for memo, answers in cached:
            memo.update(answers)


def neutral(hooks: Iterable[str]) -> Hooks:
    """The named hooks without any effect, as in a scheme that does not override them."""
    return {name: NEUTRAL[name] for name in hooks}


def has_any(scheme: Scheme, hooks: Iterable[str]) -> bool:
    """Whether a part of the scheme overrides one of these hooks."""
    return any(overrides(part, hook) for part in scheme.schemes for hook in hooks)


def random_code(scheme: Scheme, positions: Tensor) -> Tensor:
    """Random code ``[1, token, width]`` of positions ``[1, token]``, which no normalisation removes."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*positions.shape, scheme.geometry.code_width, generator=generator).to(positions.device)


def formula_change(
    attention: Any, scheme: Scheme, geometry: Geometry, positions: Tensor, hidden: Tensor, hooks: Hooks
) -> float:
    """Relative change of the attention formula's output when ``hooks`` replace the scheme's own.

    Queries, keys and values are random.
    """
    generator, shape = torch.Generator().manual_seed(2), (positions.shape[1], geometry.head_dim)
    heads = geometry.heads, geometry.kv_heads, geometry.kv_heads
    q, k, v = (torch.randn(1, count, *shape, generator=generator).to(positions.device) for count in heads)
    outputs = []
    for changed in ({}, hooks):
        with replaced(scheme, changed):
            terms = reference_terms(attention, scheme, positions, hidden, {}, scaling=geometry.head_dim**-0.5)
            outputs.append(attention_output(terms, q, k, v, torch.float32))
    return float((outputs[1] - outputs[0]).abs().max() / outputs[0].abs().max())
