"""posenc_passkey: a number hidden in filler text at every length and depth, scored in one forward pass.

Mohtashami, Jaggi 2023, "Landmark Attention", arXiv:2305.16300, section 4.2.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.eval.tasks.base import DepthSweep, Doc, Metric
from hf_posenc.eval.tasks.sweep import metric_name
from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.text_filler import from_random_start


class PasskeyTask(DepthSweep):
    """Whether greedy decoding would write the hidden key, at every length and depth, by teacher forcing."""

    metrics: ClassVar[dict[str, Metric]] = {"acc": (mean, True), "nll": (mean, False)}

    def documents(self) -> list[Doc]:
        """One key per document, hidden at every length and depth."""
        return [self.document(sample) for sample in range(self.sweep.keys)]

    def document(self, sample: int) -> Doc:
        """One key and its prompts, by length, then depth; hidden in the user's text, where one is given."""
        rng = random.Random(f"{self.sweep.seed}-{sample}")
        key = passkey.draw_key(rng)
        filler = from_random_start(self.own_sentences, rng) if self.own_sentences else passkey.FILLER
        cells = [passkey.passkey(length, depth, key, self.count, filler) for length, depth in self.cells()]
        tokens = self.count(cells[0].prompt + cells[0].answer) - self.count(cells[0].prompt)
        return {"name": key, "prompts": [c.prompt for c in cells], "target": cells[0].answer, "tokens": tokens}

    def count(self, text: str) -> int:
        """Tokens of a text with the special ones that evaluation adds."""
        return len(self.tokenizer(text, verbose=False)["input_ids"])

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Prompt and key of every cell."""
        return [(prompt, doc["target"]) for prompt in doc["prompts"]]

    def scores(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Accuracy, and nats/token of the key: in every cell, and at every length over the depths."""
        values: dict[str, float] = {}
        by_cell = dict(zip(self.cells(), results, strict=True))
        for length in self.sweep.lengths:
            by_depth = {depth: by_cell[length, depth] for depth in self.sweep.depths}
            for depth, (score, greedy) in by_depth.items():
                values[metric_name("acc", length, depth)] = float(greedy)
                values[metric_name("nll", length, depth)] = -score / doc["tokens"]
            for metric in self.metrics:
                values[metric_name(metric, length)] = mean(
                    [values[metric_name(metric, length, depth)] for depth in by_depth]
                )
        return values
