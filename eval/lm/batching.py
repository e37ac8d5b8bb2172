"""Batches of sequences, longest first, in which the score of a sequence never depends on the other sequences.

    on CPU           sequences of equal length, without padding: on a CPU, padding costs as much as text
    on a device      sequences of similar length, padded on the right

A scheme that depends on the sequence length would see the padding, so it never gets a batch of mixed lengths. Under all
other schemes no later token influences an earlier one, and a batch of any size gives the numbers of a batch of one.

lm-eval takes the tokens after the context as the target. Special tokens that a tokenizer appends to a text are removed,
because the model would otherwise have to continue a text that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from itertools import count
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from tqdm import tqdm

from hf_posenc.core.progress import OpenProgressCallback
from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.errors import RequestTooLong
from hf_posenc.eval.lm.log_probs import Head, suffix_states
from hf_posenc.eval.lm.measurable import check_row
from hf_posenc.eval.lm.prefixes import forget_longest, frame_of, prefix_consistent, randomises

Row = tuple[int, ...]

LEAST_FILLED = 0.75
"""Length of the shortest sequence of a padded batch over that of the longest: at most a quarter is padding."""
AUTO_TOKENS = 8192
"""Tokens per batch with ``batch_size=auto``, which lm-eval finds with five forward passes of 64 long sequences."""


class Batched(HFLM):
    """Compute the model's final states for batches of sequences; count requests and limit batch sizes."""

    on_request: OpenProgressCallback | None
    on_overflow: str
    batch_size_per_gpu: int | str

    @cached_property
    def closing(self) -> list[int]:
        """Special tokens that the tokenizer appends to every text."""
        return frame_of(self.tokenizer)[1]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Tokens of a text without the special tokens that the tokenizer appends."""
        ids = super().tok_encode(string, add_special_tokens=add_special_tokens, **options)
        if self.closing and add_special_tokens is not False and ids[-len(self.closing) :] == self.closing:
            return ids[: -len(self.closing)]
        return ids

    def tok_batch_encode(self, strings: list[str], **options: Any) -> tuple[Tensor, Tensor]:
        """Tokens and attention mask of prompts, both ``[prompt, token]``, padded on the left."""
        ids, mask = super().tok_batch_encode(strings, **options)
        ends = len(self.closing)
        if ends and all(row[-ends:] == self.closing for row in ids.tolist()):
            return ids[:, :-ends], mask[:, :-ends]
        return ids, mask

    def check_length(self, tokens: int, kind: str) -> None:
        """Refuse a request that would have to be truncated."""
        if tokens > self.max_length and self.on_overflow == "error":
            raise RequestTooLong(
                f"A {kind} request of {tokens} tokens exceeds max_length {self.max_length}. "
                "Ask for a longer max_length, patch with a larger target_length, or pass on_overflow=truncate."
            )

    @property
    def prefixes(self) -> bool:
        """Whether one forward pass may score every prefix of its text, see `prefix_consistent`."""
        return prefix_consistent(self.model)

    @property
    def pads(self) -> bool:
        """Whether sequences of different lengths share a batch: only where this is exact and faster."""
        return self.device.type != "cpu" and self.prefixes

    def states(self, keep: dict[Row, int]) -> Generator[tuple[Row, Tensor, Head], None, None]:
        """Yield each sequence with the final states of its last ``keep[sequence]`` positions, longest first."""
        for batch in similar_lengths(keep, self.rows_at_once, LEAST_FILLED if self.pads else 1.0):
            for row in batch:
                check_row(self, row)
            forget_longest(self.model)
            with torch.no_grad(), self.precision(), self.seeded(batch):
                width = len(batch[0])
                ids = torch.tensor([row + (0,) * (width - len(row)) for row in batch], device=self.device)
                kept = max(keep[row] + width - len(row) for row in batch)
                states, head = suffix_states(self.model, ids, kept)
                for row, own in zip(batch, states, strict=True):
                    end = kept - (width - len(row))
                    yield row, own[end - keep[row] : end], head

    def rows_at_once(self, length: int) -> int:
        """Batch size at a sequence length; 1 for random positions, because each sequence has its own seed."""
        if randomises(self.model):
            return 1
        size = self.batch_size
        return size if isinstance(size, int) else max(1, min(self.max_batch_size or 1, AUTO_TOKENS // length))

    @contextmanager
    def batch_of(self, size: int) -> Iterator[None]:
        """Inside the block, set the batch size of `HFLM` to ``size``."""
        before, self.batch_size_per_gpu = self.batch_size_per_gpu, size
        try:
            yield
        finally:
            self.batch_size_per_gpu = before

    def seeded(self, batch: list[Row]) -> AbstractContextManager[Any]:
        """Seed random positions with the sequence, so that they are equal in every run, order and process."""
        if not randomises(self.model):
            return nullcontext()
        return fixed_seed(hash(batch[0]))

    def precision(self) -> torch.autocast:
        """Autocast to the requested mixed precision, or do nothing."""
        dtype = self.mixed_precision_dtype
        return torch.autocast(device_type=self.device.type, dtype=dtype, enabled=dtype is not None)

    @contextmanager
    def progress(self, total: int, what: str, disable: bool) -> Iterator[Callable[[], None]]:
        """Yield a function that reports one more finished request to ``on_request``, or to the first process's bar."""
        numbers = count(1)
        with tqdm(total=total, desc=what, disable=disable or self.rank != 0 or self.on_request is not None) as bar:

            def finished() -> None:
                bar.update()
                if self.on_request is not None:
                    number = next(numbers)
                    self.on_request(number / total, f"{what}, request {number:,} of {total:,}")

            yield finished


def similar_lengths(
    rows: dict[Row, Any], size: Callable[[int], int], filled: float = LEAST_FILLED
) -> Iterator[list[Row]]:
    """Yield batches of sequences at least ``filled`` times as long as the longest of the batch.

    The longest sequences come first, so that memory runs out early or never.
    """
    batch: list[Row] = []
    for row in sorted(rows, key=len, reverse=True):
        if batch and (len(batch) == size(len(batch[0])) or len(row) < filled * len(batch[0])):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
