"""Settings of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from hf_posenc.core.lengths import check_factor
from hf_posenc.core.settings import check_fields
from hf_posenc.errors import OptionOutOfRange

Length = Annotated[int, Ge(2)]
Case = Literal["prefill", "decode", "train"]


@dataclass(frozen=True)
class BenchSettings:
    """Settings of a benchmark.

    Attributes:
        entries: schemes, as `hf_posenc.schemes.entry.Entry`.
        lengths: tokens.
        cases: keys of `hf_posenc.insight.bench.cases.CASES`.
        factor: target length divided by trained length, for entries without one.
        rounds: measurements of each cell.
        batch_size: rows of a call.
        compile: whether all models run under `torch.compile`, with dynamic shapes.

    Raises:
        OptionOutOfRange: a number is out of range, or a name is unknown.
    """

    entries: Sequence[Any]
    lengths: Annotated[list[Length] | tuple[Length, ...], MinLen(1)]
    cases: list[Case] | tuple[Case, ...] = ("prefill",)
    factor: float | None = None
    rounds: Annotated[int, Ge(1)] = 7
    batch_size: Annotated[int, Ge(1)] = 1
    compile: bool = False

    def __post_init__(self) -> None:
        check_fields(self, OptionOutOfRange)
        if self.factor is not None:
            check_factor(self.factor)
        if any(entry.scheme is None for entry in self.entries):
            raise OptionOutOfRange("unpatched is the baseline, not a scheme. It is always timed: leave it out.")
        if self.compile and "decode" in self.cases:
            raise OptionOutOfRange(
                "compile is set, and the cache of 'decode' grows with every call, which transformers does not compile. "
                "Time prefill or train."
            )
