"""Generation for lm-eval: prompts of equal length together, none truncated.

lm-eval pads prompts to the longest of a batch and cuts the front of those that leave no room, their begin token first.
On a device prompts of any length go together, padded on the left, where `Batched.pads` says that this is exact.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.utils_hf import stop_sequences_criteria
from torch import Tensor

from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.lm.batching import Batched
from hf_posenc.eval.lm.native_length import check_reach
from hf_posenc.eval.lm.spans import forget_longest


class Generating(Batched):
    """Continuations of prompts."""

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continuations; prompt and new tokens together must fit, and prompts are batched with their equals only."""
        if self.tokenizer.eos_token_id is None:
            raise NotMeasurable("This tokenizer has no end token, so generation would not stop. Set its eos_token.")
        by_length: dict[tuple[int, int], dict[int, Instance]] = defaultdict(dict)
        mixed, longest = self.pads, 0
        for request in requests:
            prompt, options = request.args
            tokens = len(self.tok_encode(prompt))
            new = options.get("max_gen_toks", options.get("max_new_tokens", self.max_gen_toks))
            self.check_length(tokens + new, "generate_until")
            # The last new token is never an input.
            check_reach(self, tokens + new - 1, f"a prompt of {tokens} tokens and up to {new} new ones")
            longest = max(longest, tokens)
            by_length[0 if mixed else tokens, new][id(request)] = request
        answers: dict[int, str] = {}
        with self.bar(sum(map(len, by_length.values())), "Generating", disable_tqdm) as bar:
            for tokens, new in sorted(by_length, reverse=True):
                unique, size = by_length[tokens, new], self.rows_at_once((longest if mixed else tokens) + new)
                forget_longest(self.model)
                with self.under(self.setting(tokens + new)), self.batch_of(size):
                    some = super().generate_until(list(unique.values()), disable_tqdm=True)
                answers |= dict(zip(unique, some, strict=True))
                for _ in unique:
                    self.ticked(bar)
        return [answers[id(request)] for request in requests]

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        """As `HFLM` does, without a cache where keys depend on the length of the text they were cached under."""
        if self.prefixes:
            return super()._model_generate(context, max_length, stop, **options)
        if not options.get("temperature"):
            options = {k: v for k, v in options.items() if k != "temperature"} | {"do_sample": False}
        stopping = stop_sequences_criteria(self.tokenizer, stop, context.shape[1], context.shape[0])
        with self.precision():
            return self.model.generate(
                input_ids=context, max_length=max_length, stopping_criteria=stopping,
                pad_token_id=self.tokenizer.pad_token_id, use_cache=False, **options,
            )  # fmt: skip
