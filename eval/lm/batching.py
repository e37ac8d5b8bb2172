"""Batching: sequences of equal length together, without padding, longest first.

Padding would move the positions of a scheme that looks at the length of the text, and lm-eval's own batches have no
mask for it. So a row's score never depends on the rows it was scored with, and a batch of any size gives the numbers of
a batch of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from hf_posenc.eval.lm.log_probs import Head, suffix_states
from hf_posenc.eval.lm.native_length import check_row
from hf_posenc.eval.lm.spans import forget_longest, prefix_consistent, randomises
from hf_posenc.eval.lm.strip_end_token import OpenEnded

Row = tuple[int, ...]

AUTO_TOKENS = 8192
"""Tokens of a batch where ``batch_size=auto``: lm-eval finds out by five forwards of 64 rows at the full length."""


class Batched(OpenEnded):
    """The model behind the requests: states of rows, and what they are counted and limited by."""

    on_request: Callable[[], None] | None
    batch_size_per_gpu: int | str

    def check_length(self, tokens: int, kind: str) -> None:
        """Refuse what would have to be cut."""
        raise NotImplementedError

    def setting(self, tokens: int) -> Hashable:
        """What the model has to be set to for a text of so many tokens; rows of one setting are scored together."""
        return None

    def under(self, setting: Hashable) -> AbstractContextManager[Any]:
        """Set the model to ``setting`` and back."""
        return nullcontext()

    @property
    def prefixes(self) -> bool:
        """Whether one pass may answer for every shorter text with the same beginning."""
        return prefix_consistent(self.model)

    def states(self, keep: dict[Row, int]) -> Generator[tuple[Row, Tensor, Head], None, None]:
        """Each row with the states of its last positions, as many as asked for, longest rows first."""
        with closing(self.batches(keep)) as batches:
            for batch in batches:
                for row in batch:
                    check_row(self, row)
                forget_longest(self.model)
                with torch.no_grad(), self.precision(), self.seeded(batch):
                    ids = torch.tensor(batch, device=self.device)
                    states, head = suffix_states(self.model, ids, max(keep[row] for row in batch))
                    for row, own in zip(batch, states, strict=True):
                        yield row, own[-keep[row] :], head

    def batches(self, rows: dict[Row, Any]) -> Generator[list[Row], None, None]:
        """Rows of one length together, with the model set to it."""
        found = equal_lengths(rows, self.rows_at_once)
        for setting, some in groupby(found, key=lambda batch: self.setting(len(batch[0]) + 1)):
            with self.under(setting):
                yield from some

    def rows_at_once(self, length: int) -> int:
        """Rows of a batch; where positions are drawn anew, one, so that each can have its own seed."""
        if randomises(self.model):
            return 1
        size = self.batch_size
        return size if isinstance(size, int) else max(1, min(self.max_batch_size or 1, AUTO_TOKENS // length))

    @contextmanager
    def batch_of(self, size: int) -> Iterator[None]:
        """Let `HFLM` batch so many rows."""
        given, self.batch_size_per_gpu = self.batch_size_per_gpu, size
        try:
            yield
        finally:
            self.batch_size_per_gpu = given

    def seeded(self, batch: list[Row]) -> AbstractContextManager[Any]:
        """Positions that are drawn anew are drawn alike for the same row, in every run, order and process."""
        if not randomises(self.model):
            return nullcontext()
        return drawn_from(hash(batch[0]))

    def precision(self) -> torch.autocast:
        """The mixed precision asked for, or none."""
        dtype = self.mixed_precision_dtype
        return torch.autocast(device_type=self.device.type, dtype=dtype, enabled=dtype is not None)

    def bar(self, total: int, what: str, disable: bool) -> tqdm:
        """A progress bar in the first process, where nobody else keeps one."""
        return tqdm(total=total, desc=what, disable=disable or self.rank != 0 or self.on_request is not None)

    def ticked(self, bar: tqdm | None = None) -> None:
        """Tell the progress bars that one more request is done."""
        if bar is not None:
            bar.update()
        if self.on_request is not None:
            self.on_request()


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Random numbers from ``seed``; outside, as if none had been drawn."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def equal_lengths(rows: dict[Row, Any], size: Callable[[int], int]) -> Iterator[list[Row]]:
    """Batches of inputs of one length, longest first, so that memory runs out early or never."""
    by_length: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_length[len(row)].append(row)
    for length in sorted(by_length, reverse=True):
        same, step = by_length[length], size(length)
        yield from (same[i : i + step] for i in range(0, len(same), step))
