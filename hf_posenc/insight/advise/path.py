"""The commands from a model to a server: fine-tune, merge, measure, export, serve."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from hf_posenc.forward.current_forward import schemes_of_base
from hf_posenc.forward.engine_backend import computed_in_parts
from hf_posenc.insight.advise.recommendation import Recommendation
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.state import base_model_of
from hf_posenc.training.emit.emit import plain_form
from hf_posenc.training.emit.run import CHECKPOINT, OUTPUT
from hf_posenc.training.emit.trl import TRL

TRAINED_ON, MEASURED_ON = "hub:emozilla/pg19:train", "hub:emozilla/pg19:validation"
"""PG-19: books, which YaRN was trained on (arXiv:2309.00071, section 4.1)."""


@dataclass(frozen=True)
class Portable:
    """Where a scheme can go from this package.

    Attributes:
        plain: whether the configuration of transformers says it, for other programs to read.
        named: whether an adapter that another framework trains is saved with it.
        in_parts: whether several cards can share a row.
    """

    plain: bool
    named: bool
    in_parts: bool

    @classmethod
    def of(cls, skeleton: Any, one: Recommendation) -> Portable:
        """That of a recommendation, tried on the model without weights."""
        given: dict[str, Any] = {**one.lengths, **one.options}
        patch_model(skeleton, one.scheme, **given)
        try:
            plain = plain_form(skeleton)
            schemes = schemes_of_base(base_model_of(skeleton)[0])
            in_parts = all(scheme.geometry.causal and computed_in_parts(scheme) for scheme in schemes)
            in_parts &= "trained_length" not in one.lengths  # which no command after training could name
            return cls(plain is not None, plain is None or plain.section is not None, in_parts)
        finally:
            unpatch_model(skeleton)


@dataclass(frozen=True)
class Route:
    """What the commands depend on.

    Attributes:
        one: the recommendation to follow.
        scheme: where its scheme can go.
        dtype: of the frozen weights in training, or ``4bit``.
        checkpointing: whether training needs gradient checkpointing.
        cards: to train and to serve on.
        shared: whether they share each row.
        row: tokens of a row.
        served, measured: tokens of the longest text that fits, in a server and in an evaluation.
    """

    one: Recommendation
    scheme: Portable
    dtype: str
    checkpointing: bool
    cards: int
    shared: bool
    row: int
    served: int
    measured: int

    @property
    def folder(self) -> str:
        """The run's."""
        return f"runs/{re.sub(r'[^A-Za-z0-9._-]+', '-', self.one.model.rstrip('/').rpartition('/')[2])}"

    @property
    def merged(self) -> str:
        """The folder of the merged model."""
        return f"{self.folder}-merged"

    @property
    def plain(self) -> str:
        """The folder of the exported model."""
        return f"{self.folder}-export"

    @property
    def named_again(self) -> list[str]:
        """The words that name the scheme, where the merged model has none."""
        return [] if not self.shared or self.scheme.named else self.one.scheme_words


def commands_of(route: Route) -> tuple[str, ...]:
    """The commands, in order."""
    serving = [serve(route)] if route.scheme.plain and route.served > route.one.trained else []
    measuring = [measure(route)] if route.measured else []
    return (*train(route), merge(route), *measuring, export(route), *serving)


def train(route: Route) -> list[str]:
    """In one command; where cards share rows, written for TRL and started there."""
    one, target = route.one, route.one.lengths["target_length"]
    words = [*one.training_words(checkpointing=route.checkpointing), "--dtype", route.dtype]
    words += ["--text", TRAINED_ON, "--set", "streaming=true"]
    if route.row < target:
        words += ["--set", f"length={route.row}"]
    if route.shared:
        words += ["--emit", "trl", "--set", f"cards={route.cards}", "--out", route.folder]
        start = TRL.start(restored=route.scheme.named, cards=route.cards)
        return [shlex.join(words), f"(cd {shlex.quote(route.folder)} && {start})"]
    words += ["--held-out", MEASURED_ON]
    if route.row < target:  # what does not fit in training is measured afterwards
        lengths = sorted({one.trained, route.row})
        words += ["--set", f"eval_lengths=[{','.join(map(str, lengths))}]"]
    launched = ["accelerate", "launch", "--num_processes", str(route.cards), "-m", "hf_posenc.cli"]
    return [shlex.join([*(launched if route.cards > 1 else words[:1]), *words[1:], "--out", route.folder])]


def merge(route: Route) -> str:
    """The adapter into the weights."""
    adapter = f"{route.folder}/{OUTPUT}" if route.shared else route.folder
    base = ["--base", f"{route.folder}/{CHECKPOINT}"] if route.shared and route.scheme.named else []
    return command("merge", adapter, *base, "--dtype", "bfloat16", "--out", route.merged)


def measure(route: Route) -> str:
    """At the trained length, and at the longest that fits."""
    lengths = sorted({min(route.one.trained, route.measured), route.measured})
    words = [*route.named_again, "--lengths", ",".join(map(str, lengths)), "--text", MEASURED_ON]
    return command("eval", route.merged, *words)


def export(route: Route) -> str:
    """For transformers and what reads its configuration, or with the code that the scheme needs."""
    to = [] if route.scheme.plain else ["--to", "bundle"]
    return command("export", route.merged, *route.named_again, *to, "--out", route.plain)


def serve(route: Route) -> str:
    """With vLLM, on all cards."""
    cards = ["--tensor-parallel-size", str(route.cards)] if route.cards > 1 else []
    return shlex.join(["vllm", "serve", route.plain, "--max-model-len", str(route.served), *cards])


def command(name: str, model: str, *words: str) -> str:
    """A command on a model."""
    return shlex.join(["hf-posenc", name, "--model", model, *words])
