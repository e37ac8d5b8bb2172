"""The tasks that tiny models are trained on, by name."""

from __future__ import annotations

from lab.from_scratch.addition import Addition
from lab.from_scratch.copying import Copy
from lab.from_scratch.flip_flop import FlipFlop
from lab.from_scratch.largest import Largest
from lab.from_scratch.selective_copying import SelectiveCopying
from lab.from_scratch.sorting import Sorting
from lab.from_scratch.task import Task
from lab.from_scratch.text import Text

TASKS: dict[str, type[Task]] = {
    "text": Text, "copy": Copy, "addition": Addition, "sorting": Sorting, "selective_copying": SelectiveCopying,
    "flip_flop": FlipFlop, "largest": Largest,
}  # fmt: skip
