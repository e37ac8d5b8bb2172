"""Answer lm-eval's requests: one forward pass per sequence, however many requests it answers.

lm-eval pads prompts to the longest of a batch and cuts the front of those that leave no room, their begin token first.
Here prompts of equal length are continued together, and none is truncated. On a device prompts of any length go
together, padded on the left, where `Batched.pads` says that this is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.utils_hf import stop_sequences_criteria
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from hf_posenc.eval.errors import NotMeasurable, TextTooShort
from hf_posenc.eval.lm.batching import Batched, Row
from hf_posenc.eval.lm.log_probs import Head, token_scores
from hf_posenc.eval.lm.measurable import check_reach
from hf_posenc.eval.lm.spans import Pass, forget_longest, passes

Scored = tuple[float, bool]
SpanScore = tuple[float, int]
TokenRequest = tuple[tuple[str, str] | None, list[int], list[int]]


class Scorer(Batched):
    """Answers to the requests of a causal model: scores, and continuations of prompts."""

    def _loglikelihood_tokens(
        self, requests: list[TokenRequest], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[Scored]:
        rows: dict[Row, list[int]] = defaultdict(list)
        for number, (_, context, target) in enumerate(requests):
            self.check_length(len(context) + len(target) - 1, "loglikelihood")  # the last token is never an input
            rows[tuple((context + target)[-(self.max_length + 1) : -1])].append(number)
        carrier = carriers(rows, requests) if self.prefixes else {}
        prefixes_of: dict[Row, list[Row]] = defaultdict(list)
        keep: dict[Row, int] = defaultdict(int)
        for row, numbers in rows.items():
            whole = carrier.get(row, row)
            prefixes_of[whole].append(row)
            longest = max(len(requests[number][2]) for number in numbers)
            keep[whole] = max(keep[whole], len(whole) - len(row) + longest)
        answers: dict[int, Scored] = {}
        with self.bar(len(requests), "Scoring", disable_tqdm) as bar, closing(self.states(keep)) as found:
            for whole, states, head in found:
                for row, number in ((part, n) for part in prefixes_of[whole] for n in rows[part]):
                    cache_key, _, target = requests[number]
                    end = len(states) - len(whole) + len(row)
                    answers[number] = self.answer(states[end - len(target) : end], head, target)
                    if cache_key is not None:
                        self.cache_hook.add_partial("loglikelihood", cache_key, answers[number])
                    self.ticked(bar)
        return [answers[number] for number in range(len(requests))]

    def answer(self, states: Tensor, head: Head, target: list[int]) -> Scored:
        """Log-likelihood of ``target``, and whether greedy decoding would have written it."""
        scores, greedy = token_scores(states, torch.tensor(target, device=states.device), head)
        return float(scores.sum()), bool(greedy.all())

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, each token once, after one begin token.

        lm-eval puts a second begin token before that of the tokenizer and scores the first. Past `max_length`, where
        that was allowed, the text is scored in disjoint windows, as in lm-eval.

        Raises:
            TextTooShort: a text is empty.
        """
        windows: list[TokenRequest] = []
        owners: list[int] = []
        for owner, (text,) in enumerate(request.args for request in requests):
            ids = self.tok_encode(text)
            ids = ids[1:] if ids[:1] == [self.prefix_token_id] else ids
            if not ids:
                raise TextTooShort(f"Document {owner} is empty, it has no tokens to score. Leave it out.")
            self.check_length(len(ids), "loglikelihood_rolling")
            for window in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, (score, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[owner] += score
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def span_scores(self, requests: list[Instance], disable_tqdm: bool = False) -> list[list[SpanScore]]:
        """Log-probability of spans of tokens, and how many of their tokens are the argmax.

        Requests are ``(name, front, ids, spans)``, see `hf_posenc.eval.lm.spans`; one pass serves all the spans it can.
        """
        unique = {id(request): request for request in requests}  # lm-eval repeats some to even out its processes
        prefixes = self.prefixes
        passes_of = {key: passes(*request.args[1:], prefixes=prefixes) for key, request in unique.items()}
        left = {key: len(some) for key, some in passes_of.items()}
        wanted: dict[Row, list[tuple[int, Pass]]] = defaultdict(list)
        for key, one in ((key, one) for key, some in passes_of.items() for one in some):
            self.check_length(len(one.tokens) - 1, "span_scores")
            wanted[one.tokens[:-1]].append((key, one))
        keep = {row: max(one.keep for _, one in some) for row, some in wanted.items()}
        answers = {key: [(0.0, 0)] * len(request.args[3]) for key, request in unique.items()}
        with self.bar(len(unique), "Scoring", disable_tqdm) as bar, closing(self.states(keep)) as found:
            for row, states, head in found:
                for key, one in wanted[row]:
                    for number, score in span_answers(one, states, head):
                        answers[key][number] = score
                    left[key] -= 1
                    if not left[key]:
                        self.ticked(bar)
        return [answers[id(request)] for request in requests]

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
                with self.batch_of(size):
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


def span_answers(one: Pass, states: Tensor, head: Head) -> Iterator[tuple[int, SpanScore]]:
    """Yield number and score of each span of a forward pass."""
    wanted = torch.tensor(one.tokens[-one.keep :], device=states.device)
    scores, greedy = token_scores(states[-one.keep :], wanted, head)
    for number, where in one.answers:
        yield number, (float(scores[where].double().sum()), int(greedy[where].sum()))


def carriers(rows: Mapping[Row, Sequence[int]], requests: Sequence[TokenRequest]) -> dict[Row, Row]:
    """Map each sequence that is a prefix of others to the longest of these, whose pass answers for all.

        A    prompt → " a₁"            B    prompt " a₁," → " a₂"            the pass of B covers all of A

    Valid only where a token's score depends on the tokens before it alone; the caller checks that.

    Args:
        rows: input sequences, with the numbers of the requests they answer.
        requests: name, context and target of each.
    """
    found: dict[Row, Row] = {}
    for row, after in reversed(list(pairwise(sorted(rows)))):  # sorting puts common prefixes next to each other
        if after[: len(row)] == row and goes_on(requests, rows[row], rows[after]):
            found[row] = found.get(after, after)
    return found


def goes_on(requests: Sequence[TokenRequest], earlier: Sequence[int], later: Sequence[int]) -> bool:
    """Whether the later contexts hold the earlier targets.

    Two targets for one context, such as the choices of a question, do not go on from each other, even where one begins
    with the other: they keep a pass each, and with it the very numbers of lm-eval.
    """
    longest = max(len(requests[number][1]) + len(requests[number][2]) for number in earlier)
    return all(len(requests[number][1]) >= longest for number in later)
