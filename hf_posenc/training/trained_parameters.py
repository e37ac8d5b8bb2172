"""Count what a run trains, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from hf_posenc.training.trained_layers import is_norm

ADDED = {
    "lora_": "LoRA matrices",
    "posenc": "learned positions",
}
"""Prefix of a part of a parameter's name, to the kind of what was added to the model."""


@dataclass(frozen=True)
class RunStart:
    """What a run is about to train.

    Attributes:
        parameters: trained numbers by kind, such as ``embeddings``.
        total: numbers of the model, adapters included.
        learning_rate: peak.
        source: of the learning rate: a paper, or that it was given.
        resumed_from: steps that are done, of a run that is resumed; 0 where it has no complete checkpoint. None for a
            run that is not resumed.
        held_out_tokens: tokens at the end of the training text that are held out.
    """

    parameters: Mapping[str, int]
    total: int
    learning_rate: float
    source: str
    resumed_from: int | None = None
    held_out_tokens: int = 0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.parameters.items())
        resumed = {
            None: "", 0: "there is no complete checkpoint to resume from, and training begins at step 0\n"
        }.get(self.resumed_from, f"resumed from the checkpoint of step {self.resumed_from}\n")  # fmt: skip
        return (
            f"{resumed}training {sum(self.parameters.values()):,} of {self.total:,} parameters: {kinds}; "
            f"learning rate {self.learning_rate:g} ({self.source})"
            + (f"\nheld out: the last {self.held_out_tokens:,} tokens of the text" if self.held_out_tokens else "")
        )


def trained_by_kind(model: nn.Module) -> dict[str, int]:
    """Numbers that training changes, by kind, largest first; a weight that modules share counts once."""
    counts: dict[str, int] = {}
    seen: set[int] = set()
    for name, module in model.named_modules():
        for key, weight in module.named_parameters(recurse=False):
            if weight.requires_grad and id(weight) not in seen:
                seen.add(id(weight))
                kind = kind_of(f"{name}.{key}", module)
                counts[kind] = counts.get(kind, 0) + weight.numel()
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def kind_of(name: str, module: nn.Module) -> str:
    """The kind of a parameter: what was added to the model, or of which layer of the model it is."""
    parts = name.split(".")
    for prefix, kind in ADDED.items():
        if any(part.startswith(prefix) for part in parts):
            return kind
    if isinstance(module, nn.Embedding):
        return "embeddings"
    return "norms" if is_norm(module) else "other weights"
