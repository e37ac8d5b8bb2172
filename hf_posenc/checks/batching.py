"""Checks of batching: other rows, padding and other packed documents do not change a text's outputs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from hf_posenc.checks.case import Case
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import Measured, located, register_check, worst

Side = Literal["left", "right"]
SIDES: tuple[Side, ...] = ("left", "right")


@register_check("batch", needs=("is_deterministic",))
def single_equals_batched(case: Case, side: Side = "left") -> Measured:
    """A text on its own equals the same text in a batch with longer ones, padded on one side."""
    with case.patched() as model:
        longest = case.clip_length(2 * case.trained_length + 6, model)
        lengths = sorted({longest, min(case.trained_length + 1, longest), case.trained_length // 2, 5, 1}, reverse=True)
        rows = [random_tokens(model, n, seed=number) for number, n in enumerate(lengths)]
        tokens, mask = pad_batch(rows, longest, side)
        batched = forward(model, tokens, attention_mask=mask)
        single = torch.zeros_like(batched)
        for number, row in enumerate(rows):
            single[number, mask[number].bool()] = forward(model, row)[0]
        value, where = max_deviation(batched, single, mask.bool())
    return value, f"{where}, padded on the {side}, rows of {lengths}"


@register_check("padding", needs=("is_deterministic",))
def padding_has_no_effect(case: Case, side: Side = "left", width: int = 5) -> Measured:
    """A text with ``width`` pad tokens on one side equals the text without padding."""
    with case.patched() as model:
        row = random_tokens(model, case.clip_length(2 * case.trained_length + 6, model) - width)
        tokens, mask = pad_batch([row], row.shape[1] + width, side)
        padded_output = forward(model, tokens, attention_mask=mask)[:, mask[0].bool()]
        value, where = max_deviation(padded_output, forward(model, row))
    return value, f"{where}, {width} pads on the {side}"


@register_check("packed", needs=("causal", "is_deterministic"))
def packed_equals_separate(case: Case) -> Measured:
    """Documents packed into one row, separated by ``position_ids`` that restart at 0, equal the separate documents.

    The engine computes short documents under a mask and longer ones one by one; both are measured. Skipped if the
    unpatched model does not support packing.
    """
    trained = case.trained_length
    packs = [trained // 2, 1, trained - 2, 7], [trained - 2, 1, trained, trained // 2 + 1]
    tolerance = case.tolerance("packed")
    with case.unpatched() as model:
        if not max(_packing_deviation(model, sizes)[0] for sizes in packs) <= tolerance:
            return 0.0, "no token: the unpatched model does not support packed documents"
        case.apply(model)
        return worst(located(_packing_deviation(model, sizes), f"documents of {sizes}") for sizes in packs)


def _packing_deviation(model: nn.Module, sizes: list[int]) -> tuple[float, str]:
    """Largest deviation of packed documents from the separate documents, and its token."""
    documents = [random_tokens(model, n, seed=number) for number, n in enumerate(sizes)]
    row = torch.cat(documents, dim=1)
    positions = torch.cat([torch.arange(n) for n in sizes])[None].to(row.device)
    separate = torch.cat([forward(model, document) for document in documents], dim=1)
    return max_deviation(forward(model, row, position_ids=positions), separate)


def pad_batch(rows: list[Tensor], width: int, side: Side) -> tuple[Tensor, Tensor]:
    """Pad texts ``[1, token]`` to a batch ``[row, width]``; returns tokens and attention mask."""
    tokens = rows[0].new_zeros(len(rows), width)
    mask = torch.zeros_like(tokens)
    for number, row in enumerate(rows):
        n = row.shape[1]
        columns = slice(width - n, width) if side == "left" else slice(0, n)
        tokens[number, columns], mask[number, columns] = row[0], 1
    return tokens, mask
