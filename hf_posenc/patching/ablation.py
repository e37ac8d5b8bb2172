"""Ablation: what a scheme contributes must reach the patched layer, each term on its own.

The comparison with the unpatched model cannot tell a scheme whose codes, bias or scale were dropped on the way from one
that took effect: the model's own positions are gone in both. So the hooks of one term are made neutral, and compared:

    formula   on random queries, keys and values, without the adapter: how much the term matters
    layer     the probe of the adapter: must change as well, where the formula does

With all hooks neutral nothing is left that knows positions: outputs must not depend on them.
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
    """Queries and keys as they are, with zeros where the scheme's are wider, which its rotation expects."""
    return tuple(functional.pad(one, (0, scheme.key_width - one.shape[-1])) for one in states)


HOOKS = (
    *("embed", "rotation", "row_rotation", "regions", "bias", "values"),
    *("query_scale", "row_scale", "logit_scale", "visible", "sink"),
)
NEUTRAL: Hooks = {**{name: getattr(Scheme, name) for name in HOOKS}, "prepare": unprepared}
"""Hooks of a scheme, as functions of it and their arguments, where a scheme does not have them."""

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
"""What reaches attention, and the hooks that bring it. Codes are added before it."""


@contextmanager
def replaced(scheme: Scheme, hooks: Hooks) -> Iterator[None]:
    """Run the block with other hooks, in all parts of a scheme; what is kept of its own answers is kept afterwards."""
    kept = [(memo, dict(memo)) for one in {scheme, *scheme.schemes} if (memo := vars(one).get("kept_answers"))]
    for part in scheme.schemes:
        for name, hook in hooks.items():
            setattr(part, name, partial(hook, part))
    try:
        yield
    finally:
        for part in scheme.schemes:
            for name in hooks:
                delattr(part, name)
            part.training = part.training  # an assignment, after which nothing is kept of what the hooks answered
        for memo, answers in kept:
            memo.update(answers)


def neutral(hooks: Iterable[str]) -> Hooks:
    """Hooks as of a scheme that does not have them."""
    return {name: NEUTRAL[name] for name in hooks}


def has_any(scheme: Scheme, hooks: Iterable[str]) -> bool:
    """Whether a part of the scheme has one of these hooks."""
    return any(overrides(part, hook) for part in scheme.schemes for hook in hooks)


def random_code(scheme: Scheme, positions: Tensor) -> Tensor:
    """A code of each position, ``[1, token]`` to ``[1, token, width]``, that no normalisation removes."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*positions.shape, scheme.geometry.code_width, generator=generator).to(positions.device)


def formula_change(
    attention: Any, scheme: Scheme, geometry: Geometry, positions: Tensor, hidden: Tensor, hooks: Hooks
) -> float:
    """Relative change of attention by its formula, on random queries, keys and values, under other hooks."""
    generator, shape = torch.Generator().manual_seed(2), (positions.shape[1], geometry.head_dim)
    heads = geometry.heads, geometry.kv_heads, geometry.kv_heads
    q, k, v = (torch.randn(1, count, *shape, generator=generator).to(positions.device) for count in heads)
    outputs = []
    for changed in ({}, hooks):
        with replaced(scheme, changed):
            terms = reference_terms(attention, positions, hidden, scheme, scaling=geometry.head_dim**-0.5)
            outputs.append(attention_output(terms, q, k, v, torch.float32))
    return float((outputs[1] - outputs[0]).abs().max() / outputs[0].abs().max())
