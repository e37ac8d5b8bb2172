"""Shifted sparse attention while training: one half of the heads attends within groups of G tokens, the other half
within groups that are shifted by half a group.

    heads h < H/2:  query i sees key j ≤ i  where  ⌊i / G⌋ = ⌊j / G⌋
    heads h ≥ H/2:  query i sees key j ≤ i  where  ⌊(i + G/2) / G⌋ = ⌊(j + G/2) / G⌋

The shifted groups reach across the borders of the others, so that information passes from group to group, layer by
layer. A row of L tokens has L · G pairs instead of L². Of the shifted heads, the first and the last G/2 tokens are
groups of their own, as in the released code for FlashAttention. Its other form rolls the tokens around, where the first
tokens of a row attend to its last ones: to their own future.

Chen et al. 2023, "LongLoRA", arXiv:2309.12307, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Bias, BlockBias, KeyBias, Terms, ToeplitzBias
from hf_posenc.errors import TrainingImpossible
from hf_posenc.forward.attention import PatchedAttention, RotatedCall
from hf_posenc.forward.engine_backend import ENGINE_BACKENDS, AttentionOutput
from hf_posenc.patching.offloading import change_class
from hf_posenc.patching.state import is_patched
from hf_posenc.training.config import Training

if TYPE_CHECKING:
    from transformers import Cache


Mix = Callable[[RotatedCall, dict[str, Any]], AttentionOutput]

GROUP_LENGTH = "posenc_group_length"  # of an attention module in the block: tokens per group
_CLASSES: dict[type, type] = {}


class GroupedAttention(PatchedAttention):
    """Mixin of patched attention modules: while training, heads attend within groups of tokens."""

    def mix(self, call: RotatedCall, host: dict[str, Any], cache: Cache | None) -> AttentionOutput:
        """Within groups while training, else as the patched module does."""
        if not self.training:
            return super().mix(call, host, cache)
        return attend_in_groups(partial(super().mix, cache=None), call, host, self.__dict__[GROUP_LENGTH])


@contextmanager
def shifted_groups(model: nn.Module, group_length: int | None) -> Iterator[None]:
    """In the block, the patched layers of a model attend within groups of tokens while they are in training mode.

    Args:
        model: patched.
        group_length: tokens per group, an even number that divides the length of rows; None for none.
    """
    found = [] if group_length is None else [one for one in model.modules() if isinstance(one, PatchedAttention)]
    classes = [(layer, type(layer)) for layer in found]
    for layer, cls in classes:
        change_class(layer, grouped_class(cls))
        layer.__dict__[GROUP_LENGTH] = group_length
    try:
        yield
    finally:
        for layer, cls in classes:
            change_class(layer, cls)
            del layer.__dict__[GROUP_LENGTH]


def grouped_class(cls: type[PatchedAttention]) -> type[PatchedAttention]:
    """The class of a patched attention module with `GroupedAttention` in front of it."""
    if cls not in _CLASSES:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        _CLASSES[cls] = type(cls.__name__, (GroupedAttention, cls), names)
    return _CLASSES[cls]


def attend_in_groups(mix: Mix, call: RotatedCall, host: dict[str, Any], group: int) -> AttentionOutput:
    """Mixed values ``[batch, query, heads, head_dim]`` of a call within groups, and no attention weights."""
    check_divisible(call, host, group)
    length = call.queries[0].shape[2]
    halves = []
    for half, cuts in enumerate((range(group, length, group), range(group // 2, length, group))):
        parts = [part_of(call, half, slice(*rows)) for rows in zip((0, *cuts), (*cuts, length), strict=True)]
        halves.append(torch.cat([mix(part, {**host, **positions_of(host, part)})[0] for part in parts], dim=1))
    return torch.cat(halves, dim=2), None


def check_divisible(call: RotatedCall, host: dict[str, Any], group: int) -> None:
    """Refuse calls whose tokens, heads, mask or terms cannot be divided."""
    heads, length = call.queries[0].shape[1:3]
    terms, backend = call.shared.terms, call.plan.backend
    for hindrance, remedy in (
        (heads % 2 and f"{heads} query heads into halves", "Choose another recipe"),
        (call.values.shape[1] % 2 and "an odd number of key heads into halves", "Choose another recipe"),
        (length % group and f"a row of {length} tokens, with groups of {group}", "Choose rows of a multiple"),
        (call.values.shape[2] != length and "keys of a cache", "Pass use_cache=False"),
        (call.ctx.real_keys is not None and "padded rows", "Pack rows to one length"),
        (host.get("output_attentions") and "attention weights", "Leave output_attentions out"),
        (
            backend not in ENGINE_BACKENDS and f"attention under {backend!r}",
            'Use model.set_attn_implementation("sdpa")',
        ),
        (host.get("s_aux") is not None and "attention sinks of the model", "Choose another recipe"),
        (
            any(not isinstance(bias, (KeyBias, ToeplitzBias)) for bias in (*terms.bias, *terms.values))
            and "positional terms of what queries and keys contain, as the scheme has",
            "Choose another scheme or recipe",
        ),
    ):
        if hindrance:
            raise TrainingImpossible(f"Shifted sparse attention cannot divide {hindrance}. {remedy}.")


def part_of(call: RotatedCall, half: int, rows: slice) -> RotatedCall:
    """Half of the heads, 0 or 1, at some tokens."""
    heads, kv_heads = half_of(call.queries[0].shape[1], half), half_of(call.values.shape[1], half)
    mask = mask_of(call.plan.mask, heads, rows)
    return RotatedCall(
        replace(call.plan, mask=mask, shared=None, compute={}),
        replace(call.shared, terms=terms_of(call.shared.terms, heads, rows)),
        context_of_part(call.ctx, half, kv_heads, rows),
        tuple(query[:, heads, rows] for query in call.queries),
        tuple(key[:, kv_heads, rows] for key in call.keys),
        call.values[:, kv_heads, rows],
    )


def half_of(heads: int, half: int) -> slice:
    """The first half of so many heads, or the second."""
    return slice(half * heads // 2, (half + 1) * heads // 2)


def terms_of(terms: Terms, heads: slice, rows: slice) -> Terms:
    """Terms of some heads at some tokens."""
    scale, sink = terms.row_scale, terms.sink
    return replace(
        terms,
        bias=tuple(bias_of(bias, heads, rows) for bias in terms.bias),
        row_scale=None if scale is None else scale[:, heads if scale.shape[1] > 1 else slice(None), rows],
        sink=None if sink is None else sink[heads],
    )


def bias_of(bias: Bias, heads: slice, rows: slice) -> Bias:
    """A bias of some heads at some tokens."""
    slopes = None if isinstance(bias, BlockBias) or bias.slopes is None else bias.slopes[heads]
    if isinstance(bias, KeyBias):
        return KeyBias(bias.values[:, heads, rows], slopes)
    whole = bias.of_distance
    return ToeplitzBias(lambda distance: whole(distance)[heads], slopes)


def mask_of(mask: Tensor | None, heads: slice, rows: slice) -> Tensor | None:
    """A mask ``[batch or 1, 1 or heads, query or 1, key]`` of some heads at some tokens."""
    if mask is None:
        return None
    seen = mask[:, heads if mask.shape[1] > 1 else slice(None), :, rows]
    return seen if seen.shape[2] == 1 else seen[:, :, rows]


def context_of_part(ctx: PositionContext, half: int, kv_heads: slice, rows: slice) -> PositionContext:
    """Positions of some tokens."""
    extra = ctx.extra_key_channels
    return replace(
        ctx,
        query_positions=ctx.query_positions[:, rows],
        key_positions=ctx.key_positions[:, rows],
        memo=ctx.once(("group", half, rows.start, rows.stop), dict),
        hidden=None if ctx.hidden is None else ctx.hidden[:, rows],
        extra_key_channels=None if extra is None else extra[:, kv_heads, rows],
        coordinates=None if ctx.coordinates is None else ctx.coordinates[:, rows],
        first=None if ctx.first is None else ctx.first + rows.start,
    )


def positions_of(host: dict[str, Any], part: RotatedCall) -> dict[str, Any]:
    """The keyword ``position_ids`` for some tokens, if the model passes it."""
    return {"position_ids": part.ctx.query_positions} if host.get("position_ids") is not None else {}


def check_attention_groups(model: nn.Module, training: Training, *, causal: bool) -> None:
    """Refuse attention within groups where it would have no effect, or is not defined."""
    if training.attention_groups == 1:
        return
    asked = f"attention_groups={training.attention_groups} was asked for, and"
    if not causal:
        raise TrainingImpossible(f"{asked} shifted sparse attention is defined for causal models. Leave it out.")
    if not is_patched(model):
        raise TrainingImpossible(f"{asked} this model is not patched. Patch it first (--scheme, such as yarn).")
