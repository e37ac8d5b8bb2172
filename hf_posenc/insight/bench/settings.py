"""Settings of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from hf_posenc.core.lengths import check_factor
from hf_posenc.core.settings import check_fields
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.bench.cases import CASES

REACH = 8  # times the trained length, where neither lengths nor factor exceed it


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
        rows: of `hf_posenc.insight.bench.rows.KINDS`.
        compiled: whether all models run under `torch.compile`.

    Raises:
        OptionOutOfRange: a number is out of range, or a name is unknown.
    """

    entries: Sequence[Any]
    lengths: Annotated[Sequence[Annotated[int, Ge(2)]], MinLen(1)]
    cases: Sequence[Literal["prefill", "decode", "static_decode", "train"]] = ("prefill",)
    baselines: Sequence[Literal["unpatched", "naive"]] = ("unpatched", "naive")
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
        decoding = [case for case in self.cases if CASES[case].decoder_only]
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

    def target(self, trained: int) -> int:
        """Target length of the schemes, in tokens."""
        if self.factor is not None:
            return round(self.factor * trained)
        return max(REACH * trained, *self.lengths)
