"""Laws of definition: the model reads, and learns, what the formula of its scheme says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from hf_posenc.checks.batching import SIDES, padded
from hf_posenc.checks.case import Pair
from hf_posenc.checks.deviation import Gap
from hf_posenc.checks.forward import (
    distance,
    in_pieces,
    new_cache,
    pieces,
    places,
    read,
    text,
)
from hf_posenc.checks.reference_attention import Spoken, by_definition
from hf_posenc.checks.registry import law
from hf_posenc.checks.training import apart, gradients


@law("formula", company=True, costly=True)
def reads_as_defined(pair: Pair) -> Gap:
    """Prefill, batches padded on either side, and decoding equal the scheme's formula, dense and in float64.

    The formula is of one text without a cache, a mask or a pad: see `hf_posenc.checks.reference_attention`.
    """
    with pair.patched() as model:
        length = pair.length(2 * pair.trained + 6, model)
        rows = [text(model, length), text(model, max(1, length // 2), seed=1)]
        defined = [definition(model, row) for row in rows]
        found = [(*distance(read(model, row), exact), "prefill") for row, exact in zip(rows, defined, strict=True)]
        for side in SIDES:
            tokens, mask = padded(rows, length, side)
            together = read(model, tokens, attention_mask=mask)
            for number, exact in enumerate(defined):
                mine = together[number : number + 1, mask[number].bool()]
                found.append((*distance(mine, exact), f"a batch padded on the {side}"))
        if pair.causal and not pair.needs_whole_text:
            cache = new_cache(DynamicCache, model, length)
            decoded = in_pieces(model, rows[0], cache, pieces(min(pair.trained - 1, length), 1, length))
            found.append((*distance(decoded, defined[0]), "decoding"))
    value, where, which = max(found, key=lambda gap: (gap[0] != gap[0], gap[0]))
    return pair.gap("formula", value, f"{where}, {which}")


@law("derivatives", company=True, costly=True)
def learns_as_defined(pair: Pair) -> Gap:
    """The gradient of every parameter, the scheme's own included, is that of the formula.

    In units of the largest of each parameter. One on which nothing depends, such as the bias of the keys, to which
    softmax is blind, has a gradient of roundings alone; it is measured by a thousandth of the largest of all.
    """
    with pair.patched() as model:
        length = pair.length(2 * pair.trained + 6, model)
        engine = gradients(model, length, rows=1)
        with by_definition(model, places(model, length)):
            defined = gradients(model, length, rows=1)
    return pair.gap("derivatives", *apart(engine, defined))


def definition(model: PreTrainedModel, tokens: Tensor, start: int = 0) -> Tensor:
    """Logits of one text ``[1, token]`` that begins at ``start``, by the formula, ``[1, token, width]``."""
    return heard(model, tokens, start)[0]


def heard(model: PreTrainedModel, tokens: Tensor, start: int = 0) -> tuple[Tensor, list[Spoken]]:
    """The same, and what the scheme of every layer said of the text."""
    positions = places(model, tokens.shape[1], start)
    with torch.no_grad(), by_definition(model, positions) as said:
        return read_at(model, tokens, start), said


def read_at(model: PreTrainedModel, tokens: Tensor, start: int) -> Tensor:
    """Logits of a text that begins at ``start``, as the model reads it."""
    call: dict[str, Any] = {} if start == 0 else {"position_ids": places(model, tokens.shape[1], start)}
    return read(model, tokens, **call)
