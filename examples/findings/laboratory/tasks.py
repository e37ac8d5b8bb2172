"""The tasks on which tiny models are trained, by name: text and puzzles."""

from __future__ import annotations

import random
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate

import torch
from laboratory.puzzles import Addition, Copy, FlipFlop, Largest, SelectiveCopying, Sorting
from laboratory.task import ASKED, IGNORED, Row, Task, TrainingBudget, mean_loss
from torch import Tensor

from hf_posenc.eval.texts.measured_text import HELD_OUT, TRAINING, module_text


class Text(Task):
    """The standard library's source, byte by byte: loss of the same last bytes after contexts of every length."""

    vocabulary, main, measure, unit = 256, "loss", "nats a byte", "bytes"

    def __init__(self, budget: TrainingBudget, seed: int) -> None:
        super().__init__(budget, seed)
        self.trained, self.held_out = joined(TRAINING), joined(HELD_OUT)

    def __getitem__(self, index: int) -> Row:
        start = random.Random(f"{self.seed}-{index}").randrange(len(self.trained) - self.longest)
        ids = self.trained[start : start + self.longest].long()
        return {"input_ids": ids, "labels": ids}

    def tokens(self, length: int) -> int:
        return length

    def questions(self, length: int) -> Row:
        """Windows of held-out text with the same last bytes at every length; half of the shortest length is scored."""
        ids = torch.stack([self.held_out[end - length : end] for end in self.ends()]).long()
        scored = min(self.budget.asked) // 2
        return {"input_ids": ids, "labels": ids.index_fill(1, torch.arange(length - scored), IGNORED)}

    def ends(self) -> list[int]:
        """Ends of the windows, evenly spaced over the held-out text."""
        return torch.linspace(max(self.budget.asked), len(self.held_out), ASKED).long().tolist()

    def clusters(self, length: int) -> list[str]:
        """The module that a window ends in."""
        starts = [0, *accumulate(len(module_text(name).encode()) + 1 for name in HELD_OUT)]
        return [HELD_OUT[bisect_right(starts, end - 1) - 1] for end in self.ends()]

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": mean_loss(logits, labels)}


TASKS: dict[str, type[Task]] = {
    "text": Text, "copy": Copy, "addition": Addition, "sorting": Sorting, "selective_copying": SelectiveCopying,
    "flip_flop": FlipFlop, "largest": Largest,
}  # fmt: skip


@lru_cache(maxsize=2)
def joined(names: tuple[str, ...]) -> Tensor:
    """The bytes of modules, joined by line breaks."""
    return torch.frombuffer(bytearray("\n".join(map(module_text, names)).encode()), dtype=torch.uint8)
