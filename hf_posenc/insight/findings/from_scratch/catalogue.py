"""The tasks that tiny models are trained on, by name."""

from __future__ import annotations

from hf_posenc.insight.findings.from_scratch.addition import Addition
from hf_posenc.insight.findings.from_scratch.copying import Copy
from hf_posenc.insight.findings.from_scratch.flip_flop import FlipFlop
from hf_posenc.insight.findings.from_scratch.largest import Largest
from hf_posenc.insight.findings.from_scratch.selective_copying import SelectiveCopying
from hf_posenc.insight.findings.from_scratch.sorting import Sorting
from hf_posenc.insight.findings.from_scratch.task import Task
from hf_posenc.insight.findings.from_scratch.text import Text

TASKS: dict[str, type[Task]] = {
    "text": Text, "copy": Copy, "addition": Addition, "sorting": Sorting, "selective_copying": SelectiveCopying,
    "flip_flop": FlipFlop, "largest": Largest,
}  # fmt: skip
