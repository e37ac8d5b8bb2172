"""Checks of company: other rows, padding and other documents must not show in a row's logits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import register_check

Side = Literal["left", "right"]
SIDES: tuple[Side, ...] = ("left", "right")


@register_check("batch", company=True)
def alone_equals_batched(pair: Case, side: Side = "left") -> Deviation:
    """A row alone equals the row in a batch with longer rows, padded on one side."""
    with pair.patched() as model:
        longest = pair.length(2 * pair.trained + 6, model)
        lengths = sorted({longest, min(pair.trained + 1, longest), pair.trained // 2, 5, 1}, reverse=True)
        rows = [random_tokens(model, n, seed=number) for number, n in enumerate(lengths)]
        tokens, mask = padded(rows, longest, side)
        together = forward(model, tokens, attention_mask=mask)
        alone = torch.zeros_like(together)
        for number, row in enumerate(rows):
            alone[number, mask[number].bool()] = forward(model, row)[0]
        value, where = max_deviation(together, alone, mask.bool())
    return pair.gap("batch", value, f"{where}, padded on the {side}, rows of {lengths}")


@register_check("padding", company=True)
def padding_is_invisible(pair: Case, side: Side = "left", width: int = 5) -> Deviation:
    """A row with any number of pads on either side equals the row without."""
    with pair.patched() as model:
        row = random_tokens(model, pair.length(2 * pair.trained + 6, model) - width)
        tokens, mask = padded([row], row.shape[1] + width, side)
        with_pads = forward(model, tokens, attention_mask=mask)[:, mask[0].bool()]
        value, where = max_deviation(with_pads, forward(model, row))
    return pair.gap("padding", value, f"{where}, {width} pads on the {side}")


@register_check("packed", causal=True, company=True)
def packed_equals_separate(pair: Case) -> Deviation:
    """Documents packed into one row, told apart by positions that start again, equal the documents read one by one."""
    with pair.host() as model:
        sizes = [pair.trained // 2, 1, pair.trained - 2, 7]
        documents = [random_tokens(model, n, seed=number) for number, n in enumerate(sizes)]
        row = torch.cat(documents, dim=1)
        places = torch.cat([torch.arange(n) for n in sizes])[None].to(row.device)
        limit = pair.limit("packed")

        def apart() -> tuple[float, str]:
            separate = torch.cat([forward(model, document) for document in documents], dim=1)
            return max_deviation(forward(model, row, position_ids=places), separate)

        if not apart()[0] <= limit:
            return pair.gap("packed", 0.0, "no token: the unpatched model does not read packed documents")
        pair.apply(model)
        value, where = apart()
    return pair.gap("packed", value, f"{where}, documents of {sizes}")


def padded(rows: list[Tensor], width: int, side: Side) -> tuple[Tensor, Tensor]:
    """Rows of one batch ``[row, width]``, and their mask."""
    tokens = rows[0].new_zeros(len(rows), width)
    mask = torch.zeros_like(tokens)
    for number, row in enumerate(rows):
        n = row.shape[1]
        place = slice(width - n, width) if side == "left" else slice(0, n)
        tokens[number, place], mask[number, place] = row[0], 1
    return tokens, mask
