"""Checks of definition: the model reads, and learns, what the formula of its scheme says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from hf_posenc.checks.batching import SIDES, padded
from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    chunk_sizes,
    forward,
    forward_in_chunks,
    max_deviation,
    new_cache,
    positions_from,
    random_tokens,
)
from hf_posenc.checks.reference_attention import ReferenceTerms, by_definition
from hf_posenc.checks.registry import register_check
from hf_posenc.checks.training import apart, gradients


@register_check("formula", company=True, costly=True)
def matches_definition(pair: Case) -> Deviation:
    """Prefill, batches padded on either side, and decoding equal the scheme's formula, dense and in float64.

    The formula is of one text without a cache, a mask or a pad: see `hf_posenc.checks.reference_attention`.
    """
    with pair.patched() as model:
        length = pair.length(2 * pair.trained + 6, model)
        rows = [random_tokens(model, length), random_tokens(model, max(1, length // 2), seed=1)]
        defined = [definition(model, row) for row in rows]
        found = [
            (*max_deviation(forward(model, row), exact), "prefill") for row, exact in zip(rows, defined, strict=True)
        ]
        for side in SIDES:
            tokens, mask = padded(rows, length, side)
            together = forward(model, tokens, attention_mask=mask)
            for number, exact in enumerate(defined):
                mine = together[number : number + 1, mask[number].bool()]
                found.append((*max_deviation(mine, exact), f"a batch padded on the {side}"))
        if pair.causal and not pair.needs_whole_text:
            cache = new_cache(DynamicCache, model, length)
            decoded = forward_in_chunks(model, rows[0], cache, chunk_sizes(min(pair.trained - 1, length), 1, length))
            found.append((*max_deviation(decoded, defined[0]), "decoding"))
    value, where, which = max(found, key=lambda gap: (gap[0] != gap[0], gap[0]))
    return pair.gap("formula", value, f"{where}, {which}")


@register_check("derivatives", company=True, costly=True)
def gradients_match_definition(pair: Case) -> Deviation:
    """The gradient of every parameter, the scheme's own included, is that of the formula.

    In units of the largest of each parameter. One on which nothing depends, such as the bias of the keys, to which
    softmax is blind, has a gradient of roundings alone; it is measured by a thousandth of the largest of all.
    """
    with pair.patched() as model:
        length = pair.length(2 * pair.trained + 6, model)
        engine = gradients(model, length, rows=1)
        with by_definition(model, positions_from(model, length)):
            defined = gradients(model, length, rows=1)
    return pair.gap("derivatives", *apart(engine, defined))


def definition(model: PreTrainedModel, tokens: Tensor, start: int = 0) -> Tensor:
    """Logits of one text ``[1, token]`` that begins at ``start``, by the formula, ``[1, token, width]``."""
    return reference_outputs(model, tokens, start)[0]


def reference_outputs(model: PreTrainedModel, tokens: Tensor, start: int = 0) -> tuple[Tensor, list[ReferenceTerms]]:
    """The same, and what the scheme of every layer said of the text."""
    positions = positions_from(model, tokens.shape[1], start)
    with torch.no_grad(), by_definition(model, positions) as said:
        return forward_at(model, tokens, start), said


def forward_at(model: PreTrainedModel, tokens: Tensor, start: int) -> Tensor:
    """Logits of a text that begins at ``start``, as the model reads it."""
    call: dict[str, Any] = {} if start == 0 else {"position_ids": positions_from(model, tokens.shape[1], start)}
    return forward(model, tokens, **call)
