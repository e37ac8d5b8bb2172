"""Plan for given cards: which ways to train fit, how long rows and texts may be, and the commands
from a model to a server: fine-tune, merge, measure, export, serve.

Several cards share a row: each holds a part of its tokens and a shard of the weights, and gathers the layers that it
computes (FSDP2 with context parallelism). For a scheme that needs whole rows, each card trains on a row of its own.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

from hf_posenc.errors import OptionOutOfRange, shown
from hf_posenc.forward.current_forward import schemes_of_base
from hf_posenc.forward.engine_backend import supports_context_parallel
from hf_posenc.insight.advise.memory import GIB, Memory, TrainingMemory
from hf_posenc.insight.advise.recommendation import Recommendation
from hf_posenc.patching.patch import patch_model, scheme_set_aside
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.registry import scheme_class
from hf_posenc.training.emit.cards import unit_of
from hf_posenc.training.emit.emit import plain_form
from hf_posenc.training.emit.frameworks import TRL
from hf_posenc.training.emit.run import CHECKPOINT, OUTPUT

SHARE = 0.9
"""Share of a card's memory for tensors; the CUDA context, kernel workspaces and fragmentation take the rest."""
STEP = 256
"""Tokens per card that the longest row is rounded down to a multiple of."""
WRITTEN = re.compile(r"(?:(\d{1,4})x)?(\d{1,4}(?:\.\d+)?)", re.IGNORECASE | re.ASCII)
TRAINED_ON, MEASURED_ON = "hub:emozilla/pg19:train", "hub:emozilla/pg19:validation"
"""PG-19, the books that YaRN was trained on (arXiv:2309.00071, section 4.1)."""


@dataclass(frozen=True)
class Cards:
    """GPUs to train and to serve on: their number, and the bytes of one."""

    count: int
    memory: int

    @classmethod
    def of(cls, text: str | float) -> Cards:
        """Parse ``"80"`` or ``"8x80"``, in GiB.

        Raises:
            OptionOutOfRange: the text has neither form.
        """
        match = WRITTEN.fullmatch(str(text).strip())
        cards = match and cls(int(match[1] or 1), round(float(match[2]) * GIB))
        if cards is None or not (cards.count and cards.memory):
            raise OptionOutOfRange(
                f"gpu takes the memory of a card in GiB, got {shown(text)}. Write 80, or 8x80 for eight cards."
            )
        return cards

    @property
    def room(self) -> int:
        """Bytes of one card that tensors may use."""
        return int(SHARE * self.memory)


@dataclass(frozen=True)
class Fit:
    """A way to train, and the longest row that fits with it.

    Attributes:
        dtype: dtype of the frozen weights: ``bfloat16``, or ``4bit`` for QLoRA.
        checkpointing: whether it uses gradient checkpointing.
        needed: bytes per card for one row of the length that the scheme trains on.
        longest: tokens of the longest row that fits, at most that length; 0 if none fits.
    """

    dtype: str
    checkpointing: bool
    needed: int
    longest: int


@dataclass(frozen=True)
class Plan:
    """Training and serving on given cards.

    Attributes:
        cards: the cards.
        scheme: scheme of the recommendation that the commands follow.
        shared: whether the cards share each row.
        fits: ways to train, the fastest first.
        wanted: tokens of a row that the scheme trains on: the target length, or the trained length with PoSE.
        row: tokens of a row in the commands; 0 if no row fits that is longer than the trained length.
        served: tokens of the longest text whose cache fits beside the weights, at most the target length.
        measured: tokens of the longest text that one card can evaluate, with the memory of a forward pass.
        commands: the commands, in order.
    """

    cards: Cards
    scheme: str
    shared: bool
    fits: tuple[Fit, ...]
    wanted: int
    row: int
    served: int
    measured: int
    commands: tuple[str, ...] = ()

    @property
    def best(self) -> Fit:
        """The way with the longest row, and of equals the first."""
        return max(self.fits, key=lambda way: way.longest)


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


def plan(cards: Cards, one: Recommendation, step: TrainingMemory, memory: Memory, layer: int, scheme: Portable) -> Plan:
    """Compute the plan.

    Args:
        cards: cards to train and to serve on.
        one: the recommendation to follow.
        step: memory of a training step in bfloat16.
        memory: memory of the model in bfloat16.
        layer: bytes per token that one layer keeps for the backward pass; an upper bound for a forward pass alone.
        scheme: where the scheme can be used.
    """
    target = one.lengths["target_length"]
    shared = cards.count > 1 and scheme.in_parts
    wanted = one.trained if any(scheme_class(part).recipe for part in one.scheme.split("+")) else target
    dtypes = ("bfloat16",) if shared else ("bfloat16", "4bit")
    fits = tuple(fit(cards, step.at(wanted), dtype, on, shared=shared) for dtype in dtypes for on in (False, True))
    most = max(way.longest for way in fits)
    row = most if most > min(one.trained, wanted - 1) else 0
    served = longest(cards.count * cards.room - memory.weights, memory.token, target)
    measured = longest(cards.room - memory.weights, memory.token + layer, target)
    found = Plan(cards, one.scheme, shared, fits, wanted, row, served, measured)
    return replace(found, commands=commands_of(found, one, scheme))


def longest(room: int, token: int, target: int) -> int:
    """Return the number of tokens that fit: the target, or a multiple of `STEP`."""
    count = max(0, room) // token if token else target
    return target if count >= target else count - count % STEP


def fit(cards: Cards, step: TrainingMemory, dtype: str, checkpointing: bool, *, shared: bool) -> Fit:
    """Compute the memory and the longest row of one way to train."""
    count = cards.count if shared else 1

    def needed(length: int) -> int:
        part = step.at(-(-length // count))
        weights = (step.four_bit if dtype == "4bit" else step.weights) + step.trained
        gathered = step.gathered if shared else 0
        return weights // count + gathered + (part.checkpointed if checkpointing else part.activations) + part.loss

    target = step.length - step.length % unit_of(count)
    lengths = [*range(STEP * count, target, STEP * count), target]
    fitting = bisect_right(lengths, cards.room, key=needed)
    return Fit(dtype, checkpointing, needed(step.length), lengths[fitting - 1] if fitting else 0)


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
