"""The commands from a model to a server: fine-tune, merge, measure, export, serve."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from hf_posenc.forward.current_forward import schemes_of_base
from hf_posenc.forward.engine_backend import supports_context_parallel
from hf_posenc.insight.advise.plan import Plan
from hf_posenc.insight.advise.recommendation import Recommendation
from hf_posenc.patching.patch import patch_model, scheme_set_aside
from hf_posenc.patching.state import base_model_of
from hf_posenc.training.emit.emit import plain_form
from hf_posenc.training.emit.frameworks import TRL
from hf_posenc.training.emit.run import CHECKPOINT, OUTPUT

TRAINED_ON, MEASURED_ON = "hub:emozilla/pg19:train", "hub:emozilla/pg19:validation"
"""PG-19, the books that YaRN was trained on (arXiv:2309.00071, section 4.1)."""


@dataclass(frozen=True)
class Portable:
    """Where a scheme can be used outside this package.

    Attributes:
        plain: whether a plain transformers configuration can express it.
        named: whether an adapter trained by another framework names it.
        in_parts: whether several cards can share a row.
    """

    plain: bool
    named: bool
    in_parts: bool

    @classmethod
    def of(cls, skeleton: Any, one: Recommendation) -> Portable:
        """Find out for a recommendation, on the model without weights."""
        arguments: dict[str, Any] = {**one.lengths, **one.options}
        with scheme_set_aside(skeleton):
            patch_model(skeleton, one.scheme, **arguments)
            plain = plain_form(skeleton)
            schemes = schemes_of_base(base_model_of(skeleton)[0])
            in_parts = all(scheme.geometry.causal and supports_context_parallel(scheme) for scheme in schemes)
            return cls(plain is not None, plain is None or plain.section is not None, in_parts)


def commands_of(plan: Plan, one: Recommendation, scheme: Portable) -> tuple[str, ...]:
    """Return the commands in order; none if no row fits, or if the checkpoint has no head.

    Args:
        plan: what fits on the cards.
        one: the recommendation to follow.
        scheme: where its scheme can be used.
    """
    if not plan.row or not one.has_head:
        return ()
    folder = f"runs/{re.sub(r'[^A-Za-z0-9._-]+', '-', one.model.rstrip('/').rpartition('/')[2])}"
    merged, exported = f"{folder}-merged", f"{folder}-export"
    adapter = f"{folder}/{OUTPUT}" if plan.shared else folder
    base = ["--base", f"{folder}/{CHECKPOINT}"] if plan.shared and scheme.named else []
    named_again = one.scheme_words if plan.shared and not scheme.named else []
    found = [*train(plan, one, folder, restored=scheme.named)]
    found.append(command("merge", adapter, *base, "--dtype", "bfloat16", "--out", merged))
    if plan.measured:
        lengths = sorted({min(one.trained, plan.measured), plan.measured})
        words = [*named_again, "--lengths", ",".join(map(str, lengths)), "--text", MEASURED_ON]
        found.append(command("eval", merged, *words))
    to = [] if scheme.plain else ["--to", "bundle"]
    found.append(command("export", merged, *named_again, *to, "--out", exported))
    if scheme.plain and plan.served > one.trained:
        cards = ["--tensor-parallel-size", str(plan.cards.count)] if plan.cards.count > 1 else []
        found.append(shlex.join(["vllm", "serve", exported, "--max-model-len", str(plan.served), *cards]))
    return tuple(found)


def train(plan: Plan, one: Recommendation, folder: str, *, restored: bool) -> list[str]:
    """Return the training command; if cards share rows, the commands that write the run for TRL and start it."""
    best, cards, target = plan.best, plan.cards.count, one.lengths["target_length"]
    words = [*one.training_words(checkpointing=best.checkpointing), "--dtype", best.dtype]
    words += ["--text", TRAINED_ON, "--set", "streaming=true"]
    if plan.row < target:
        words += ["--set", f"length={plan.row}"]
    if plan.shared:
        words += ["--emit", "trl", "--set", f"cards={cards}", "--out", folder]
        return [shlex.join(words), f"(cd {shlex.quote(folder)} && {TRL.start(restored=restored, cards=cards)})"]
    words += ["--held-out", MEASURED_ON]
    if plan.row < target:  # longer lengths do not fit beside training, and are measured afterwards
        lengths = sorted({one.trained, plan.row})
        words += ["--set", f"eval_lengths=[{','.join(map(str, lengths))}]"]
    if cards > 1:
        words[:1] = ["accelerate", "launch", "--num_processes", str(cards), "-m", "hf_posenc.cli"]
    return [shlex.join([*words, "--out", folder])]


def command(name: str, model: str, *words: str) -> str:
    """Format a command of this package on a model."""
    return shlex.join(["hf-posenc", name, "--model", model, *words])
