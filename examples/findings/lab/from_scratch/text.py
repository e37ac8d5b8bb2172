"""Language modelling of the Python standard library's source, byte by byte."""

from __future__ import annotations

import random
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text
from lab.from_scratch.budget import TrainingBudget
from lab.from_scratch.task import ASKED, IGNORED, Row, Task, mean_loss


class Text(Task):
    """Bytes of source code; scored is the loss of the same last bytes after contexts of every length."""

    vocabulary, main, measure, unit = 256, "loss", "nats a byte", "bytes"

    def __init__(self, budget: TrainingBudget, seed: int) -> None:
        super().__init__(budget, seed)
        self.trained, self.held_out = joined(TRAINING), joined(HELD_OUT)

    def __getitem__(self, index: int) -> Row:
        start = random.Random(f"{self.seed}-{index}").randrange(len(self.trained) - self.longest)
        ids = self.trained[start : start + self.longest].long()
        return {"input_ids": ids, "labels": ids}

    def tokens(self, length: int) -> int:
        """A byte is a token."""
        return length

    def questions(self, length: int) -> Row:
        """Windows of held-out text that end with the same bytes at every length; half of the shortest is scored."""
        ids = torch.stack([self.held_out[end - length : end] for end in self.ends()]).long()
        scored = min(self.budget.asked) // 2
        return {"input_ids": ids, "labels": ids.index_fill(1, torch.arange(length - scored), IGNORED)}

    def ends(self) -> list[int]:
        """Where the windows end, evenly spaced over the held-out text."""
        return torch.linspace(max(self.budget.asked), len(self.held_out), ASKED).long().tolist()

    def clusters(self, length: int) -> list[str]:
        """The module that a window ends in."""
        starts = [0, *accumulate(len(module_text(name).encode()) + 1 for name in HELD_OUT)]
        return [HELD_OUT[bisect_right(starts, end - 1) - 1] for end in self.ends()]

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """``loss``: mean cross-entropy of the scored bytes of each window, nats a byte."""
        return {"loss": mean_loss(logits, labels)}


@lru_cache(maxsize=2)
def joined(names: tuple[str, ...]) -> Tensor:
    """The bytes of modules, joined by line breaks."""
    return torch.frombuffer(bytearray("\n".join(map(module_text, names)).encode()), dtype=torch.uint8)
