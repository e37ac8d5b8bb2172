"""What a run trains: the layers that methods name (linear, norms, embeddings, learned positions), counted by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import Conv1D

from hf_posenc.patching.state import base_model_of

ADDED = {"lora_": "LoRA matrices", "posenc": "learned positions"}
"""Prefix of a part of a parameter's name, to the kind of what was added to the model."""


def linear_layers(model: nn.Module) -> list[str]:
    """Names of the base's linear layers, without those of schemes, and routers that return more than a product."""
    return sorted({name.rpartition(".")[2] for name, module in base_modules(model) if is_linear(module)})


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer and nothing more; models have classes of it that choose experts as well."""
    of_model = type(module).__module__.startswith("transformers.models.")
    chooses = of_model and type(module).forward is not nn.Linear.forward
    return isinstance(module, Conv1D) or (isinstance(module, nn.Linear) and not chooses)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer: models have classes of their own, and call them so."""
    return "Norm" in type(module).__name__


def fully_trained_modules(model: nn.Module, *, train_embeddings: bool = True) -> dict[str, Any]:
    """Modules that are trained as a whole in addition to LoRA, as LoRA's configuration takes them.

    A position table that the scheme put out of use is not among it and stays frozen. Nor are embeddings that are tied
    to an output layer and could not be kept so: PEFT knows how for those called ``embed_tokens``.
    """
    from peft.utils.constants import EMBEDDING_LAYER_NAMES

    base, _ = base_model_of(model)
    modules = base_modules(model)
    norms = {module for _, module in modules if is_norm(module)}
    schemes = [name for name, _ in model.named_modules() if "posenc" in name.split(".")]
    names = {distinct_end(name, schemes) for name, module in model.named_modules() if module in norms}
    embeddings = next(name.rpartition(".")[2] for name, one in modules if one is base.get_input_embeddings())
    tied = bool(getattr(base.config, "tie_word_embeddings", False))
    if train_embeddings and (not tied or embeddings in EMBEDDING_LAYER_NAMES):
        names.add(embeddings)
    if any("posenc" in name.split(".") for name, _ in base.named_parameters()):
        names.add("posenc")
    return {"modules_to_save": sorted(names), "ensure_weight_tying": tied and embeddings in names}


def distinct_end(name: str, others: list[str]) -> str:
    """The shortest end of a module's name, in whole parts, that none of the others ends with; else all of it.

    Llama has a ``norm``, and so does DeBERTa's table: trained as part of the scheme and again alone, PEFT could not
    load it.
    """
    parts = name.split(".")
    ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
    return next((end for end in ends if not any(other.endswith(end) for other in others)), name)


def base_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules of the base model by name, without those of schemes."""
    base, _ = base_model_of(model)
    return [(name, module) for name, module in base.named_modules() if name and "posenc" not in name.split(".")]


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
