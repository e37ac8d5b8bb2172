"""Plan for given cards: which ways to train fit, how long rows and texts may be, and the commands.

Several cards share a row: each holds a part of its tokens and a shard of the weights, and gathers the layers that it
computes (FSDP2 with context parallelism). For a scheme that needs whole rows, each card trains on a row of its own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from hf_posenc.errors import OptionOutOfRange, shown
from hf_posenc.insight.advise.memory import GIB, Memory, TrainingMemory
from hf_posenc.insight.advise.recommendation import Recommendation
from hf_posenc.schemes.registry import scheme_class
from hf_posenc.training.emit.cards import unit_of

SHARE = 0.9
"""Share of a card's memory for tensors; the CUDA context, kernel workspaces and fragmentation take the rest."""
STEP = 256
"""Tokens per card that the longest row is rounded down to a multiple of."""
WRITTEN = re.compile(r"(?:(\d{1,4})x)?(\d{1,4}(?:\.\d+)?)", re.IGNORECASE | re.ASCII)


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


def plan(
    cards: Cards, one: Recommendation, step: TrainingMemory, memory: Memory, layer: int, *, in_parts: bool
) -> Plan:
    """Compute the plan without its commands.

    Args:
        cards: cards to train and to serve on.
        one: the recommendation to follow.
        step: memory of a training step in bfloat16.
        memory: memory of the model in bfloat16.
        layer: bytes per token that one layer keeps for the backward pass; an upper bound for a forward pass alone.
        in_parts: whether several cards can share a row under the scheme.
    """
    target = one.lengths["target_length"]
    shared = cards.count > 1 and in_parts
    wanted = one.trained if any(scheme_class(part).recipe for part in one.scheme.split("+")) else target
    dtypes = ("bfloat16",) if shared else ("bfloat16", "4bit")
    fits = tuple(fit(cards, step.at(wanted), dtype, on, shared=shared) for dtype in dtypes for on in (False, True))
    most = max(way.longest for way in fits)
    row = most if most > min(one.trained, wanted - 1) else 0
    served = longest(cards.count * cards.room - memory.weights, memory.token, target)
    measured = longest(cards.room - memory.weights, memory.token + layer, target)
    return Plan(cards, one.scheme, shared, fits, wanted, row, served, measured)


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
