"""Answer lm-eval's requests with one forward pass per sequence, however many requests a sequence answers.

For generation, lm-eval pads prompts to the longest of a batch and truncates those that leave no room on the left,
begin token first. Here only prompts of equal length share a batch, and none is truncated. On a device, prompts of any
length share a batch, padded on the left, if `Batched.pads` says that this is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, pairwise
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.utils_hf import stop_sequences_criteria
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from hf_posenc.eval.errors import NotMeasurable, TextTooShort
from hf_posenc.eval.lm.batching import Batched, Row
from hf_posenc.eval.lm.log_probs import token_scores
from hf_posenc.eval.lm.measurable import check_reach
from hf_posenc.eval.lm.prefixes import forget_longest

Scored = tuple[float, bool]
SuffixScore = tuple[float, int]
TokenRequest = tuple[tuple[str, str] | None, list[int], list[int]]
Suffix = tuple[Row, int]
"""A text, and how many of its last tokens are scored."""


class Scorer(Batched):
    """Answers to the requests of a causal model: scores, and continuations of prompts."""

    def answered(
        self, requests: Mapping[int, Sequence[Suffix]], disable_tqdm: bool = False
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield a request's key, the log-probability of each token of one of its suffixes, and whether each is greedy.

        Texts with the same input share a forward pass. So do texts whose input begins another, where that is exact.
        """
        inputs: dict[Row, list[Row]] = defaultdict(list)
        counts: dict[Row, int] = defaultdict(int)
        for text, count in chain.from_iterable(requests.values()):
            inputs[text[:-1]].append(text)  # the last token is never an input
            counts[text] = max(counts[text], count)
        carrier = carriers(inputs, counts) if self.prefixes else {}
        users: dict[Row, list[tuple[int, Row, int]]] = defaultdict(list)
        keep: dict[Row, int] = defaultdict(int)
        for key, suffixes in requests.items():
            for text, count in suffixes:
                longest = carrier.get(text[:-1], text[:-1])
                users[longest].append((key, text, count))
                keep[longest] = max(keep[longest], len(longest) - len(text) + 1 + count)
        left = {key: len(suffixes) for key, suffixes in requests.items()}
        progress = self.progress(len(requests), "Scoring", disable_tqdm)
        with progress as finished, closing(self.states(keep)) as passes:
            for row, states, head in passes:
                for key, text, count in users[row]:
                    end = len(states) - len(row) + len(text) - 1
                    targets = torch.tensor(text[len(text) - count :], device=states.device)
                    yield key, *token_scores(states[end - count : end], targets, head)
                    left[key] -= 1
                    if not left[key]:
                        finished()

    def _loglikelihood_tokens(
        self, requests: list[TokenRequest], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[Scored]:
        suffixes: dict[int, list[Suffix]] = {}
        for number, (_, context, target) in enumerate(requests):
            self.check_length(len(context) + len(target) - 1, "loglikelihood")  # the last token is never an input
            suffixes[number] = [(tuple((context + target)[-(self.max_length + 1) :]), len(target))]
        answers = {
            number: (float(scores.sum()), bool(greedy.all()))
            for number, scores, greedy in self.answered(suffixes, disable_tqdm)
        }
        return [answers[number] for number in suffixes]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts: each token is scored once, and one begin token precedes the text.

        lm-eval puts a second begin token before that of the tokenizer, and scores the latter. A text longer than
        `max_length`, if allowed, is scored in disjoint windows, as in lm-eval.
        """
        suffixes: dict[int, list[Suffix]] = {}
        for number, (text,) in enumerate(request.args for request in requests):
            ids = self.tok_encode(text)
            ids = ids[1:] if ids[:1] == [self.prefix_token_id] else ids
            if not ids:
                raise TextTooShort(f"Document {number} is empty: it has no tokens to score. Leave it out.")
            self.check_length(len(ids), "loglikelihood_rolling")
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
            suffixes[number] = [((*a, *b), len(b)) for a, b in map(make_disjoint_window, windows)]
        totals = [0.0] * len(requests)
        for number, scores, _ in self.answered(suffixes, disable_tqdm):
            totals[number] += float(scores.sum())
        return totals

    def suffix_scores(self, requests: list[Instance], disable_tqdm: bool = False) -> list[SuffixScore]:
        """Log-probability of the last tokens of a text, and how many of them are the argmax.

        Requests are ``(name, tokens, count)``. lm-eval repeats some so that all processes have equally many; each is
        answered once.
        """
        suffixes: dict[int, list[Suffix]] = {id(one): [(tuple(one.args[1]), one.args[2])] for one in requests}
        for ((text, _),) in suffixes.values():
            self.check_length(len(text) - 1, "suffix_scores")
        answers = {
            key: (float(scores.double().sum()), int(greedy.sum()))
            for key, scores, greedy in self.answered(suffixes, disable_tqdm)
        }
        return [answers[id(request)] for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continuations of prompts; a prompt and its new tokens must fit into ``max_length`` together."""
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
        with self.progress(sum(map(len, by_length.values())), "Generating", disable_tqdm) as finished:
            for tokens, new in sorted(by_length, reverse=True):
                unique, size = by_length[tokens, new], self.rows_at_once((longest if mixed else tokens) + new)
                forget_longest(self.model)
                with self.batch_of(size):
                    continuations = super().generate_until(list(unique.values()), disable_tqdm=True)
                answers |= dict(zip(unique, continuations, strict=True))
                for _ in unique:
                    finished()
        return [answers[id(request)] for request in requests]

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        """Generate as `HFLM` does, but without a KV cache if cached keys depend on the length of the text."""
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


def carriers(inputs: Mapping[Row, Sequence[Row]], counts: Mapping[Row, int]) -> dict[Row, Row]:
    """Map each input that is a prefix of others to the longest of them, whose forward pass answers for all.

        A    prompt → " a₁"            B    prompt " a₁," → " a₂"            the pass of B covers all of A

    Valid only if a token's score depends only on the tokens before it; the caller checks that. Two targets of one
    context, such as the choices of a question, each keep their own pass, even if one begins with the other. Their
    numbers are therefore exactly those of lm-eval.
    """
    carrier: dict[Row, Row] = {}
    for row, after in reversed(list(pairwise(sorted(inputs)))):  # sorting puts common prefixes next to each other
        context = min(len(text) - counts[text] for text in inputs[after])
        if after[: len(row)] == row and len(row) < context:
            carrier[row] = carrier.get(after, after)
    return carrier
