"""lm-eval tasks for masked language models: loss of the same masked tokens, with increasing context before them.

posenc_mlm           … … … text ▏ targ_t                    predictable from the neighbourhood
posenc_mlm_recall    target … … … text ▏ targ_t             can be copied from the far end of the text

Both tasks mask the same tokens of the same targets. The second task repeats the whole target at the front, so that the
difference between both shows what the model retrieves over the full length.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from lm_eval.api.metrics import mean

from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.tasks.base import LOSS, Doc, LengthSweep, loss_and_perplexity
from hf_posenc.eval.texts.sampling import Tokenized
from hf_posenc.eval.texts.windows import check_room

MASKED_SHARE = 0.15
"""Share of the scored tokens that are masked, as in Devlin et al. 2018, arXiv:1810.04805."""


class MaskedTask(LengthSweep):
    """Loss and recall of the same masked tokens, with increasing context before them."""

    request_type = "masked_tokens"
    copies = 0
    """Number of copies of the whole target at the front."""
    metrics = LOSS | {"recall": (mean, True)}

    def documents(self) -> list[Doc]:
        """Token ids at every length, and the masked positions, counted back from the end of the text."""
        for name in ("mask", "cls", "sep"):
            if getattr(self.tokenizer, f"{name}_token_id") is None:
                raise NotMeasurable(
                    f"{type(self.tokenizer).__name__} has no {name} token. "
                    f"{self.config.task} is for masked language models."
                )
        check_room(self.sweep.lengths, (1 + self.copies) * self.sweep.scored + 2)
        return [self.document(source, end) for source, end in self.own_windows(self.sweep.longest)]

    def document(self, source: Tokenized, end: int) -> Doc:
        """The tokens before ``end``, between the special tokens, at every length."""
        ids = source.ids
        front = self.copies * list(ids[end - self.sweep.scored : end])
        sizes = [length - 2 - len(front) for length in self.sweep.lengths]  # two positions are for special tokens
        rows = [[*front, *ids[end - size : end]] for size in sizes]
        framed = [[self.tokenizer.cls_token_id, *row, self.tokenizer.sep_token_id] for row in rows]
        count = max(1, round(MASKED_SHARE * self.sweep.scored))
        drawn = random.Random(f"{self.sweep.seed}-{end}").sample(range(1, self.sweep.scored + 1), count)
        back = sorted(drawn, reverse=True)  # distances from the end of the text, nearest last
        return {**source.named(end), "rows": framed, "back": back, "target": ""}

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Name, ids and masked positions at every length."""
        return [(doc["name"], row, [len(row) - 1 - back for back in doc["back"]]) for row in doc["rows"]]

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Loss in nats per masked token, and the share of masked tokens that are the argmax."""
        return [
            loss_and_perplexity(-mean(scores)) | {"recall": mean([float(hit) for hit in greedy])}
            for scores, greedy in results
        ]


class MaskedRecallTask(MaskedTask):
    """The same masks as in `MaskedTask`, with a copy of the whole target at the front of the text."""

    copies = 1
