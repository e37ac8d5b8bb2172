"""What fits on given cards, and the commands of the whole path: fine-tune, merge, measure, export, serve.

Several cards share a row: each holds a part of its tokens and of the weights, trained or not, and gathers the layers
it computes (FSDP2 with context parallelism). A scheme that needs whole rows is trained on a whole row in each card.
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
"""Of a card's memory: CUDA's context, workspaces of kernels and fragments take the rest."""
STEP = 256
"""The longest row that fits is a multiple of so many tokens a card."""
WRITTEN = re.compile(r"(?:(\d{1,4})x)?(\d{1,4}(?:\.\d+)?)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Cards:
    """The GPUs to train and to serve on: how many, and bytes of one."""

    count: int
    memory: int

    @classmethod
    def of(cls, written: str | float) -> Cards:
        """Read ``"80"`` or ``"8x80"``, in GiB.

        Raises:
            OptionOutOfRange: it is neither.
        """
        found = WRITTEN.fullmatch(str(written).strip())
        count, memory = (int(found[1] or 1), round(float(found[2]) * GIB)) if found else (0, 0)
        if not (count and memory):
            raise OptionOutOfRange(
                f"gpu takes the memory of a card in GiB, got {shown(written)}. Write 80, or 8x80 for eight cards."
            )
        return cls(count, memory)

    @property
    def room(self) -> int:
        """Bytes of one card that tensors may take."""
        return int(SHARE * self.memory)


@dataclass(frozen=True)
class Fit:
    """A way to train, and how far it fits.

    Attributes:
        dtype: of the frozen weights: ``bfloat16``, or ``4bit`` for QLoRA.
        checkpointing: whether with gradient checkpointing.
        needed: bytes in each card for one row as the scheme is trained.
        longest: tokens of the longest row that fits, at most as long as that; 0 where none does.
    """

    dtype: str
    checkpointing: bool
    needed: int
    longest: int


@dataclass(frozen=True)
class Plan:
    """Training and serving on given cards.

    Attributes:
        cards: which.
        scheme: the recommendation with training that the commands follow; empty where there is none.
        shared: whether the cards share each row.
        fits: ways to train, the one that costs least time first.
        wanted: tokens of a row as the scheme is trained: the target length, or the trained one of PoSE.
        row: tokens of a row in the commands; 0 where none fits that is longer than the trained length.
        served: tokens of the longest text whose cache fits beside the weights, at most the target length.
        measured: the same with what a forward pass takes, on one card.
        commands: in order.
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
        """The way with the longest row, the first of those that are alike."""
        return max(self.fits, key=lambda way: way.longest)


def plan(
    cards: Cards, one: Recommendation, step: TrainingMemory, memory: Memory, layer: int, *, in_parts: bool
) -> Plan:
    """What fits, without the commands.

    Args:
        cards: to train and to serve on.
        one: the recommendation to follow.
        step: memory of a training step in bfloat16.
        memory: of the model in bfloat16.
        layer: bytes that a layer of it keeps of a token for its backward pass, more than it takes without one.
        in_parts: whether several cards can share a row under its scheme.
    """
    target, shared = one.lengths["target_length"], cards.count > 1 and in_parts
    wanted = one.trained if any(scheme_class(part).recipe for part in one.scheme.split("+")) else target
    dtypes = ("bfloat16",) if shared else ("bfloat16", "4bit")
    fits = tuple(fit(cards, step.at(wanted), dtype, on, shared=shared) for dtype in dtypes for on in (False, True))
    most = max(way.longest for way in fits)
    row = most if most > min(one.trained, wanted - 1) else 0
    served = longest(cards.count * cards.room - memory.weights, memory.token, target)
    measured = longest(cards.room - memory.weights, memory.token + layer, target)
    return Plan(cards, one.scheme, shared, fits, wanted, row, served, measured)


def longest(room: int, token: int, target: int) -> int:
    """Tokens that fit: the target, or a multiple of `STEP`."""
    count = max(0, room) // token if token else target
    return target if count >= target else count - count % STEP


def fit(cards: Cards, step: TrainingMemory, dtype: str, checkpointing: bool, *, shared: bool) -> Fit:
    """How far one way to train fits."""
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
