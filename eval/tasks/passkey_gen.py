"""posenc_passkey_gen: passkey retrieval by generation instead of teacher forcing.

The two differ where the model would continue the key after its first tokens but would not start it. The prompts are
those of `posenc_passkey`, with room for the tokens of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.eval.tasks.base import Doc, Metric
from hf_posenc.eval.tasks.passkey import PasskeyTask
from hf_posenc.eval.tasks.sweep import metric_name


class PasskeyGenTask(PasskeyTask):
    """Whether the greedily decoded text starts with the key, at every length and depth."""

    request_type = "generate_until"
    metrics: ClassVar[dict[str, Metric]] = {"acc": (mean, True)}
    generation: ClassVar[dict[str, Any]] = {"until": ["\n"], "do_sample": False}

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The prompt of every cell, and as many new tokens as the key has."""
        how = {"max_gen_toks": doc["tokens"], **self.config.generation_kwargs}
        return [(prompt, dict(how)) for prompt in doc["prompts"]]

    def scores(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Accuracy in every cell, and at every length over the depths."""
        values: dict[str, float] = {}
        by_length: dict[str, list[float]] = {}
        for (length, depth), written in zip(self.cells(), results, strict=True):
            hit = float(written.strip().startswith(doc["name"]))
            values[metric_name("acc", length, depth)] = hit
            by_length.setdefault(metric_name("acc", length), []).append(hit)
        return values | {name: mean(hits) for name, hits in by_length.items()}
