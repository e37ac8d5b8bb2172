"""How requests of lm-eval are scored: rows of one length together, padding never, each row once.

Padding would move the positions of a scheme that looks at the length of the text, and lm-eval's own batches have no
mask for it. So a row's score never depends on the rows it was scored with, and a batch of any size gives the numbers of
a batch of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from itertools import groupby
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils_hf import stop_sequences_criteria
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor
from tqdm import tqdm

from hf_posenc.eval.errors import NotMeasurable, TextTooShort
from hf_posenc.eval.hosts import check_reach
from hf_posenc.eval.nested import carriers
from hf_posenc.eval.scoring import Head, suffix_states, token_scores
from hf_posenc.eval.spans import Pass, passes, prefix_consistent, randomises

Scored = tuple[float, bool]
SpanScore = tuple[float, int]
TokenRequest = tuple[tuple[str, str] | None, list[int], list[int]]
Row = tuple[int, ...]

AUTO_TOKENS = 8192
"""Tokens of a batch where ``batch_size=auto``: lm-eval would find out by five forwards of 64 rows at the full length."""


class Scorer(HFLM):
    """The requests that a causal model answers."""

    tick: Callable[[], None] | None

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

    # -- log-likelihoods ---------------------------------------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: list[TokenRequest], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[Scored]:
        rows: dict[Row, list[int]] = defaultdict(list)
        for number, (_, context, target) in enumerate(requests):
            self.check_length(len(context) + len(target) - 1, "loglikelihood")  # the last token is never an input
            rows[tuple((context + target)[-(self.max_length + 1) : -1])].append(number)
        carrier = carriers(rows, requests) if self.prefixes else {}
        carried: dict[Row, list[Row]] = defaultdict(list)
        keep: dict[Row, int] = defaultdict(int)
        for row, numbers in rows.items():
            whole = carrier.get(row, row)
            carried[whole].append(row)
            longest = max(len(requests[number][2]) for number in numbers)
            keep[whole] = max(keep[whole], len(whole) - len(row) + longest)
        answers: dict[int, Scored] = {}
        with self.bar(len(requests), "Scoring", disable_tqdm) as bar, closing(self.states(keep)) as found:
            for whole, states, head in found:
                for row, number in ((part, n) for part in carried[whole] for n in rows[part]):
                    pair, _, target = requests[number]
                    end = len(states) - len(whole) + len(row)
                    answers[number] = self.answer(states[end - len(target) : end], head, target)
                    if pair is not None:
                        self.cache_hook.add_partial("loglikelihood", pair, answers[number])
                    self.ticked(bar)
        return [answers[number] for number in range(len(requests))]

    def answer(self, states: Tensor, head: Head, target: list[int]) -> Scored:
        """Log-likelihood of ``target``, and whether greedy decoding would have written it."""
        scores, greedy = token_scores(states, torch.tensor(target, device=states.device), head)
        return float(scores.sum()), bool(greedy.all())

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, each token once, after one begin token.

        lm-eval puts a second begin token before that of the tokenizer and scores the first. Past `max_length`, where
        that was allowed, windows that do not see each other take turns, as in lm-eval.

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
        """Log-probability of runs of tokens, and how many of them are the argmax.

        Requests are ``(name, front, ids, spans)``, see `hf_posenc.eval.spans`; one pass serves all the ends it can.
        """
        unique = {id(request): request for request in requests}  # lm-eval repeats some to even out its processes
        prefixes = self.prefixes
        asked = {key: passes(*request.args[1:], prefixes=prefixes) for key, request in unique.items()}
        left = {key: len(some) for key, some in asked.items()}
        wanted: dict[Row, list[tuple[int, Pass]]] = defaultdict(list)
        for key, one in ((key, one) for key, some in asked.items() for one in some):
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

    # -- generation --------------------------------------------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continuations; prompt and new tokens together must fit, and prompts are batched with their equals only."""
        if self.tokenizer.eos_token_id is None:
            raise NotMeasurable("This tokenizer has no end token, so generation would not stop. Set its eos_token.")
        by_length: dict[tuple[int, int], dict[int, Instance]] = defaultdict(dict)
        for request in requests:
            prompt, options = request.args
            tokens = len(self.tok_encode(prompt))
            new = options.get("max_gen_toks", options.get("max_new_tokens", self.max_gen_toks))
            self.check_length(tokens + new, "generate_until")
            by_length[tokens, new][id(request)] = request
        answers: dict[int, str] = {}
        with self.bar(sum(map(len, by_length.values())), "Generating", disable_tqdm) as bar:
            for tokens, new in sorted(by_length, reverse=True):
                unique, size = by_length[tokens, new], self.rows_at_once(tokens + new)
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

    # -- batches -----------------------------------------------------------------------------------------------------

    def states(self, keep: dict[Row, int]) -> Iterator[tuple[Row, Tensor, Head]]:
        """Each row with the states of its last positions, as many as asked for, longest rows first."""
        with closing(self.batches(keep)) as batches:
            for batch in batches:
                check_reach(self, len(batch[0]))
                with torch.no_grad(), self.precision(), self.seeded(batch):
                    ids = torch.tensor(batch, device=self.device)
                    states, head = suffix_states(self.model, ids, max(keep[row] for row in batch))
                    for row, own in zip(batch, states, strict=True):
                        yield row, own[-keep[row] :], head

    def batches(self, rows: dict[Row, Any]) -> Iterator[list[Row]]:
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
        return tqdm(total=total, desc=what, disable=disable or self.rank != 0 or self.tick is not None)

    def ticked(self, bar: tqdm | None = None) -> None:
        """Tell the progress bars that one more request is done."""
        if bar is not None:
            bar.update()
        if self.tick is not None:
            self.tick()


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Random numbers from ``seed``; outside, as if none had been drawn."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def span_answers(one: Pass, states: Tensor, head: Head) -> Iterator[tuple[int, SpanScore]]:
    """The spans of a pass, by number."""
    wanted = torch.tensor(one.tokens[-one.keep :], device=states.device)
    scores, greedy = token_scores(states[-one.keep :], wanted, head)
    for number, where in one.answers:
        yield number, (float(scores[where].double().sum()), int(greedy[where].sum()))


def equal_lengths(rows: dict[Row, Any], size: Callable[[int], int]) -> Iterator[list[Row]]:
    """Batches of inputs of one length, longest first, so that memory runs out early or never."""
    by_length: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_length[len(row)].append(row)
    for length in sorted(by_length, reverse=True):
        same, step = by_length[length], size(length)
        yield from (same[i : i + step] for i in range(0, len(same), step))
