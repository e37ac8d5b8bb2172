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
    """One key, hidden in the user's text or else in the usual filler."""

    def documents(self) -> list[Doc]:
        """One key per document; the key is the name of the document."""
        documents = [self.document(f"{self.sweep.seed}-{sample}") for sample in range(self.sweep.keys)]
        return [doc | {"name": doc["target"]} for doc in documents]

    def exercise(self, seed: str, depth: float) -> Passkey:
        """The key of a sample, in filler."""
        rng = random.Random(seed)
        key = draw_key(rng)
        return Passkey(key, depth, from_random_start(self.own_sentences, rng) if self.own_sentences else FILLER)
