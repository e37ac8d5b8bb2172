"""Packed rows: each document attends by itself, as a text of its own would.

    positions  0 1 2 3 0 1 2      mask  ▙ of 4 tokens, and ▙ of 3 behind it

transformers tells documents apart by positions that start again, and makes a mask of all pairs of a row's tokens. With
the mask every pair is computed; by document only those that see each other are, as a plain triangle.

On CPU alone: a GPU would wait for the borders to be read, and be left idle by short documents.

Where transformers makes a mask without positions, or none, `separated` keeps the texts apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from hf_posenc.core.context import PositionContext
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry
from hf_posenc.forward.text_borders import BORDERS, LONGEST, sees_previous

SHORTEST = 16  # tokens a document, on average: below, the calls take longer than the pairs that they save


class PackedDocument(NamedTuple):
    """Tokens of a batch that see each other.

    Attributes:
        rows: of the batch.
        tokens: of these rows.
    """

    rows: slice
    tokens: slice

    def of(self, tensor: Tensor) -> Tensor:
        """Its part of queries, keys or values, ``[batch, heads, token, width]``."""
        return tensor[self.rows, :, self.tokens]

    def positions(self, positions: Tensor) -> Tensor:
        """Its part of ``[batch or 1, token]``."""
        return positions[self.rows if len(positions) > 1 else slice(None), self.tokens]


def documents_of(mask: Any, ctx: PositionContext, backend: str) -> tuple[PackedDocument, ...]:
    """The documents of a call, row by row; none where its mask is another, or documents are too short.

    Args:
        mask: as transformers made it, ``[batch or 1, 1, query, key]``, true is visible.
        ctx: positions of the call, whose keys are those of its queries.
        backend: name of the attention implementation.
    """
    if backend != "sdpa" or is_traced() or not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        return ()
    length = mask.shape[-1]
    if mask.device.type != "cpu" or mask.shape[1:3] != (1, length) or not ctx.causal or ctx.coordinates is not None:
        return ()
    starts_anew = torch.nn.functional.pad(~mask[:, 0].diagonal(-1, dim1=-2, dim2=-1), (1, 0), value=True)
    if starts_anew.sum() * SHORTEST > starts_anew.numel() or not is_block_diagonal(mask, starts_anew):
        return ()
    same = len(mask) == 1 or bool((starts_anew == starts_anew[:1]).all())
    rows = [slice(None)] if same else [slice(row, row + 1) for row in range(len(mask))]
    return tuple(
        PackedDocument(row, slice(start, stop))
        for number, row in enumerate(rows)
        for start, stop in spans(starts_anew[number])
    )


def separated(mask: Any, texts: Tensor, ctx: PositionContext, backend: str, call: dict[str, Any], batch: int) -> Any:
    """A mask under which no text of a row sees another's tokens, made once for all layers with the same.

    Args:
        mask: as the layer was called with it, ``[batch or 1, heads or 1, token, token]``, or a package's own; None
            where causality is all there is.
        texts: number of the text of every token, ``[batch or 1, token]``.
        ctx: of the call.
        backend: name of the attention implementation.
        call: keywords of the layer, by which packages keep texts apart.
        batch: number of rows.

    Raises:
        BackendCannotCarry: the backend takes no such mask, and does not keep the texts apart itself.
    """
    if "flash" in backend and batch == 1:
        apart = call.get("position_ids") is not None or all(call.get(name) is not None for name in (*BORDERS, *LONGEST))
    else:
        apart = isinstance(mask, BlockMask) and not bool(
            (sees_previous(mask, batch, texts.shape[1])[:, 1:] & (texts.diff(dim=-1) != 0)).any()
        )
    if apart:
        return mask
    if "flash" in backend or isinstance(mask, BlockMask):
        raise BackendCannotCarry(
            f"The attention backend {backend!r} does not keep apart the texts that are packed into the rows of this "
            'call. Use model.set_attn_implementation("sdpa") or "eager".'
        )
    whose = None if mask is None else id(mask)  # torch before 2.13 cannot compile the id of None
    return ctx.once(("separated", whose), lambda: (_within_texts(mask, texts.to(ctx.device)), mask))[0]


def _within_texts(mask: Tensor | None, texts: Tensor) -> Tensor:
    own = texts[:, None, :, None] == texts[:, None, None, :]
    if mask is None:
        return own.tril()
    return mask & own if mask.dtype == torch.bool else mask.masked_fill(~own, torch.finfo(mask.dtype).min)


def spans(starts_anew: Tensor) -> list[tuple[int, int]]:
    """First tokens of the documents of a row, and the tokens behind their last."""
    starts = starts_anew.nonzero().flatten().tolist()
    return list(zip(starts, [*starts[1:], len(starts_anew)], strict=True))


def is_block_diagonal(mask: Tensor, starts_anew: Tensor) -> bool:
    """Whether queries see the tokens of their own document up to themselves, and no others."""
    number = starts_anew.cumsum(-1)
    own = (number[:, :, None] == number[:, None, :]).tril_()
    return torch.equal(mask[:, 0], own)


def context_of_document(ctx: PositionContext, document: PackedDocument) -> PositionContext:
    """Positions of a document."""
    positions = document.positions(ctx.query_positions)
    steady = bool((positions[:, 1:] - positions[:, :-1] == 1).all())
    same = steady and bool((positions[:, 0] == positions[0, 0]).all())
    return replace(
        ctx,
        query_positions=positions[:1] if same else positions,
        key_positions=positions[:1] if same else positions,
        contiguous=steady,
        memo={},
        first=int(positions[0, 0]) if same else None,
    )


def attend_in_documents(
    attend: Callable[..., tuple[Tensor, Any]],
    plans: Iterable[tuple[PackedDocument, Any]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    hidden: Tensor,
    host: dict[str, Any],
) -> Tensor:
    """Mixed values of packed rows, ``[batch, token, heads, head_dim]``.

    Args:
        attend: of a layer, `hf_posenc.forward.attention.PatchedAttention.attend`.
        plans: the documents, row by row and in the order of their tokens, with the plan of each.
        q: ``[batch, heads, token, head_dim]``, not rotated; ``k`` and ``v`` likewise.
        hidden: what they were projected from, ``[batch, token, width]``.
        host: the call's other keywords.
    """
    rows: dict[int, list[Tensor]] = {}
    for document, plan in plans:
        parts, states = (document.of(q), document.of(k), document.of(v)), hidden[document.rows, document.tokens]
        mixed, _ = attend(*parts, hidden=states, cache=None, mask=None, host=host, plan=plan)
        rows.setdefault(document.rows.start or 0, []).append(mixed)
    return torch.cat([torch.cat(mixed, dim=1) for mixed in rows.values()])
