"""Passkey tasks: a number hidden in filler text at every length and depth.

posenc_passkey        scored in one forward pass, by teacher forcing
posenc_passkey_gen    by generation of as many tokens as the key has

The two differ where the model would continue the key after its first tokens but would not start it.

Mohtashami, Jaggi 2023, "Landmark Attention", arXiv:2305.16300, section 4.2.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.eval.tasks.base import Doc, LengthSweep, Metric
from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.haystack import FILLER, from_random_start


class PasskeyTask(LengthSweep):
    """Whether greedy decoding would write the hidden key, at every length and depth, by teacher forcing."""

    deep = True
    metrics: ClassVar[dict[str, Metric]] = {"acc": (mean, True), "nll": (mean, False)}

    def documents(self) -> list[Doc]:
        """One key per document, hidden at every length and depth."""
        return [self.document(sample) for sample in range(self.sweep.keys)]

    def document(self, sample: int) -> Doc:
        """One key and its prompts, by length, then depth; hidden in the user's text, where one is given."""
        rng = random.Random(f"{self.sweep.seed}-{sample}")
        key = passkey.draw_key(rng)
        filler = from_random_start(self.own_sentences, rng) if self.own_sentences else FILLER
        prompts = [passkey.passkey(length, depth or 0.0, key, self.count, filler) for length, depth in self.cells()]
        tokens = self.count(prompts[0] + passkey.answer(key)) - self.count(prompts[0])
        return {"name": key, "prompts": prompts, "target": passkey.answer(key), "tokens": tokens}

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Prompt and key of every cell."""
        return [(prompt, doc["target"]) for prompt in doc["prompts"]]

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Accuracy, and nats/token of the key."""
        return [{"acc": float(greedy), "nll": -score / doc["tokens"]} for score, greedy in results]


class PasskeyGenTask(PasskeyTask):
    """Whether the greedily decoded text starts with the key, at every length and depth."""

    request_type = "generate_until"
    metrics: ClassVar[dict[str, Metric]] = {"acc": (mean, True)}
    generation: ClassVar[dict[str, Any]] = {"until": ["\n"], "do_sample": False}

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The prompt of every cell, and as many new tokens as the key has."""
        how = {"max_gen_toks": doc["tokens"], **self.config.generation_kwargs}
        return [(prompt, dict(how)) for prompt in doc["prompts"]]

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Accuracy."""
        return [{"acc": float(written.strip().startswith(doc["name"]))} for written in results]
