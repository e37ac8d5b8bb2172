"""Passkey task: a number hidden in filler text at every length and depth.

Mohtashami, Jaggi 2023, "Landmark Attention", arXiv:2305.16300, section 4.2.
"""

from __future__ import annotations

import random

from hf_posenc.eval.tasks.base import Doc
from hf_posenc.eval.tasks.retrieval import RetrievalTask
from hf_posenc.eval.texts.haystack import FILLER, from_random_start
from hf_posenc.eval.texts.passkey import Passkey, draw_key


class PasskeyTask(RetrievalTask):
    """One key, hidden in the user's text, where one is given."""

    def documents(self) -> list[Doc]:
        """One key per document, which has its name."""
        found = [self.document(f"{self.sweep.seed}-{sample}") for sample in range(self.sweep.keys)]
        return [doc | {"name": doc["target"]} for doc in found]

    def exercise(self, seed: str, depth: float) -> Passkey:
        """The key of a sample in its filler."""
        rng = random.Random(seed)
        key = draw_key(rng)
        return Passkey(key, depth, from_random_start(self.own_sentences, rng) if self.own_sentences else FILLER)
