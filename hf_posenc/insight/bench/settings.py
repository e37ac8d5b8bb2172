"""Settings of a benchmark, and the rows of tokens that it runs on.

full      every row has all tokens
padded    rows of ever fewer tokens, down to half of them, with padding: on the left for a decoder, else on the right
packed    documents one after the other in every row, each with positions from zero, and no attention between them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, MinLen
from torch import Tensor

from hf_posenc.core.lengths import check_factor
from hf_posenc.core.settings import check_fields
from hf_posenc.errors import OptionOutOfRange

DECODING = ("decode", "static_decode")
"""Cases in which one token is read after a cached text."""

DOCUMENTS = 4
"""Of a packed row."""
IGNORED = -100  # label of a token that has no loss

Length = Annotated[int, Ge(2)]
Case = Literal["prefill", "decode", "static_decode", "train"]
Baseline = Literal["unpatched", "naive"]


@dataclass(frozen=True)
class BenchSettings:
    """Settings of a benchmark.

    Attributes:
        entries: schemes, as `hf_posenc.schemes.entry.Entry`.
        lengths: tokens.
        cases: of `hf_posenc.insight.bench.cases.CASES`.
        baselines: models that the schemes are compared with.
        factor: target length over trained length, where an entry has none.
        rounds: of each cell.
        batch: batch size.
        rows: ``full``, ``padded`` or ``packed``; see `hf_posenc.insight.bench.settings`.
        compiled: whether all models run under `torch.compile`.

    Raises:
        OptionOutOfRange: a number is out of range, or a name is unknown.
    """

    entries: Sequence[Any]
    lengths: Annotated[list[Length] | tuple[Length, ...], MinLen(1)]
    cases: list[Case] | tuple[Case, ...] = ("prefill",)
    baselines: list[Baseline] | tuple[Baseline, ...] = ("unpatched", "naive")
    factor: float | None = None
    rounds: Annotated[int, Ge(1)] = 7
    batch: Annotated[int, Ge(1)] = 1
    rows: Literal["full", "padded", "packed"] = "full"
    compiled: bool = False

    def __post_init__(self) -> None:
        check_fields(self, OptionOutOfRange)
        if self.factor is not None:
            check_factor(self.factor)
        self.check_together()
        if any(entry.scheme is None for entry in self.entries):
            raise OptionOutOfRange(
                "unpatched is the baseline, not a scheme. Leave it out; --baselines unpatched times it."
            )

    def check_together(self) -> None:
        """Refuse settings that have no effect or no meaning with others."""
        if self.rows == "padded" and self.batch == 1:
            raise OptionOutOfRange("rows is 'padded', and a single row needs no padding. Raise batch to 2 or more.")
        decoding = [case for case in self.cases if case in DECODING]
        if self.rows == "packed" and decoding:
            raise OptionOutOfRange(
                f"cases has {decoding[0]!r}, and a KV cache holds one text, not packed ones. "
                "Time prefill or train, or rows that are full or padded."
            )
        growing = [case for case in decoding if case != "static_decode"]
        if self.compiled and growing:
            raise OptionOutOfRange(
                f"compiled is set, and the cache of {growing[0]!r} grows with every call, which transformers does not "
                "compile. Time 'static_decode'."
            )


@dataclass(frozen=True)
class BenchRows:
    """A batch, ``[row, token]``: a mask with 0 at padding where there is any, positions where documents are packed."""

    ids: Tensor
    mask: Tensor | None = None
    positions: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Tokens that are no padding."""
        return self.ids.numel() if self.mask is None else int(self.mask.sum())

    @property
    def labels(self) -> Tensor:
        """The tokens as labels, ``[row, token]``."""
        return self.ids if self.mask is None else self.ids.masked_fill(self.mask == 0, IGNORED)

    @property
    def keywords(self) -> dict[str, Tensor]:
        """What a forward pass is given besides the tokens."""
        given = {"attention_mask": self.mask, "position_ids": self.positions}
        return {name: tensor for name, tensor in given.items() if tensor is not None}


def rows_of(kind: str, ids: Tensor, *, causal: bool) -> BenchRows:
    """Rows of a kind: full, padded to ever fewer tokens, or packed with documents one after the other."""
    rows, length = ids.shape
    place = torch.arange(length, device=ids.device).expand_as(ids)
    if kind == "padded":
        missing = torch.linspace(0, length // 2, rows, device=ids.device).long()[:, None]
        return BenchRows(ids, ((place >= missing) if causal else (place < length - missing)).long())
    return BenchRows(ids, positions=place % -(-length // DOCUMENTS) if kind == "packed" else None)
