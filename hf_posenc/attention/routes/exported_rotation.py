"""Length-dependent rotation in graphs of any length: the effect of rotation on the scores, as a content bias.

    score[i, j] = Σ_m a_m cos(θ_m) + b_m sin(θ_m)        θ_m = (i − j) ω_m(L_i)
                = q_i · k_j + Σ_m a_m (cos(θ_m) − 1) + b_m sin(θ_m)

a_m and b_m are the inner and the outer product of pair m of a raw query and of a raw key. A graph cannot group
its queries by length, which depends on the values of positions; here every query has its own frequencies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.grouped_heads import products
from hf_posenc.core.terms import Block, BlockBias, RowRotation
from hf_posenc.errors import NotTraceable


def with_bias(call: AttentionCall) -> AttentionCall:
    """The same call with its row rotation expressed as a bias.

    Raises:
        NotTraceable: the rotation has no `frequencies_of` for lengths in a tensor.
    """
    rows: RowRotation = call.terms.row_rotation  # type: ignore[assignment]
    if rows.frequencies_of is None:
        raise NotTraceable(
            "The frequencies of this rotation are a function of Python integers, and a traced graph has tensors only. "
            "Give its RowRotation frequencies_of, or run the model outside torch.compile, torch.export and jit.trace."
        )
    lengths = rows.length_of(call.ctx.query_positions)
    frequencies = rows.frequencies_of(lengths)
    if call.ctx.device.type == "mps":
        frequencies = frequencies.float()
    bias = BlockBias(partial(rotation_bias, rows.rotation_of(1), frequencies), reads_scores=False)
    return replace(call, terms=replace(call.terms, row_rotation=None, bias=(bias, *call.terms.bias)), rotated_keys=None)


def rotation_bias(rotation: Rotation, frequencies: Tensor, block: Block) -> Tensor:
    """Difference that the rotation makes to the scores of a block, ``[batch, heads, n, key]``, float32.

    Args:
        rotation: defines which channels are a pair.
        frequencies: of all queries of the call, ``[batch or 1, query, pairs]``.
        block: raw queries and keys.
    """
    first_of, second_of = halves(rotation)
    distance = block.distance.to(frequencies.dtype)
    total = torch.zeros_like(block.scores)
    for pair in range(frequencies.shape[-1]):
        angle = (distance * frequencies[:, block.rows, pair, None])[:, None]
        (qa, qb), (ka, kb) = ((first_of(x, pair), second_of(x, pair)) for x in (block.query, block.key))
        inner = products(torch.cat((qa, qb), -1), torch.cat((ka, kb), -1))
        outer = products(torch.cat((qb, -qa), -1), torch.cat((ka, kb), -1))
        total = total - inner * (2 * (angle / 2).sin() ** 2).float() - outer * angle.sin().float()
    return total * block.scaling


def halves(rotation: Rotation) -> tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor, int], Tensor]]:
    """Functions of ``x […, head_dim]`` and the number of a pair to its first and its second channel, ``[…, 1]``."""
    step, away = (1, rotation.dims // 2) if rotation.layout == "half" else (2, 1)
    return (
        lambda x, pair: x[..., step * pair : step * pair + 1],
        lambda x, pair: x[..., step * pair + away : step * pair + away + 1],
    )
