"""Strip the end token that some tokenizers append to a prompt which generation continues.

lm-eval takes what follows the tokens of the context for the target. With an end token after the context that is one
token too few, and the model has to continue after the text has ended.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from lm_eval.models.huggingface import HFLM
from torch import Tensor

from hf_posenc.eval.lm.special_tokens import closing_of


class OpenEnded(HFLM):
    """`HFLM` without the special tokens its tokenizer appends to a text."""

    @cached_property
    def closing(self) -> list[int]:
        """Special tokens that the tokenizer appends to every text."""
        return closing_of(self.tokenizer)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Tokens of a text to be continued, without the appended special tokens."""
        ids = super().tok_encode(string, add_special_tokens=add_special_tokens, **options)
        if self.closing and add_special_tokens is not False and ids[-len(self.closing) :] == self.closing:
            return ids[: -len(self.closing)]
        return ids

    def tok_batch_encode(self, strings: list[str], **options: Any) -> tuple[Tensor, Tensor]:
        """Tokens and mask of prompts ``[prompt, token]``, padded on the left."""
        ids, mask = super().tok_batch_encode(strings, **options)
        ends = len(self.closing)
        if ends and all(row[-ends:] == self.closing for row in ids.tolist()):
            return ids[:, :-ends], mask[:, :-ends]
        return ids, mask
