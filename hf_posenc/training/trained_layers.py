"""Layers that a run trains (linear layers, norms, embeddings, learned positions), and their parameters by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import Conv1D

from hf_posenc.patching.state import base_model_of

ADDED = {"lora_": "LoRA matrices", "posenc": "learned positions"}
"""Kinds of parameters that were added to the model, by the prefix of a part of their names."""


def linear_layers(model: nn.Module) -> list[str]:
    """Return the names of the linear layers of the base, without those of schemes and without routers of experts."""
    return sorted({name.rpartition(".")[2] for name, module in base_modules(model) if is_linear(module)})


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a plain linear layer; models also have subclasses of it that route tokens to experts."""
    of_model = type(module).__module__.startswith("transformers.models.")
    is_router = of_model and type(module).forward is not nn.Linear.forward
    return isinstance(module, Conv1D) or (isinstance(module, nn.Linear) and not is_router)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer, by its class name: models have their own classes."""
    return "Norm" in type(module).__name__


def fully_trained_modules(model: nn.Module, *, train_embeddings: bool = True) -> dict[str, Any]:
    """Return the modules that are fully trained beside LoRA, as arguments of `peft.LoraConfig`.

    A position table that the scheme does not use stays frozen. So do embeddings that are tied to the output layer,
    unless PEFT can keep them tied, as it can those called ``embed_tokens``.
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
    """Return the shortest suffix of a module's name, in whole parts, that no name of ``others`` ends with.

    If all suffixes are taken, return the whole name. Llama has a ``norm``, and so has DeBERTa's table: PEFT could not
    load a module that is trained as part of the scheme and again alone.
    """
    parts = name.split(".")
    ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
    return next((end for end in ends if not any(other.endswith(end) for other in others)), name)


def base_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules of the base model with their names, without those of schemes."""
    base, _ = base_model_of(model)
    return [(name, module) for name, module in base.named_modules() if name and "posenc" not in name.split(".")]


@dataclass(frozen=True)
class RunStart:
    """Summary of a run before its first step.

    Attributes:
        parameters: number of trained parameters by kind, such as ``embeddings``.
        total: number of parameters of the model, adapters included.
        learning_rate: peak learning rate.
        source: source of the learning rate: a paper, or ``as given``.
        resumed_from: completed steps of a resumed run; 0 if it has no complete checkpoint; None for a new run.
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
        lines = [
            f"training {sum(self.parameters.values()):,} of {self.total:,} parameters: {kinds}; "
            f"learning rate {self.learning_rate:g} ({self.source})"
        ]
        if self.resumed_from == 0:
            lines.insert(0, "there is no complete checkpoint to resume from, and training begins at step 0")
        elif self.resumed_from is not None:
            lines.insert(0, f"resumed from the checkpoint of step {self.resumed_from}")
        if self.held_out_tokens:
            lines.append(f"held out: the last {self.held_out_tokens:,} tokens of the text")
        return "\n".join(lines)


def trained_by_kind(model: nn.Module) -> dict[str, int]:
    """Count trained parameters by kind, largest first; a weight that modules share counts once."""
    counts = Counter[str]()
    seen: set[int] = set()
    for name, module in model.named_modules():
        for key, weight in module.named_parameters(recurse=False):
            if weight.requires_grad and id(weight) not in seen:
                seen.add(id(weight))
                counts[kind_of(f"{name}.{key}", module)] += weight.numel()
    return dict(counts.most_common())


def kind_of(name: str, module: nn.Module) -> str:
    """Return the kind of a parameter: something added to the model, or the kind of layer it belongs to."""
    parts = name.split(".")
    for prefix, kind in ADDED.items():
        if any(part.startswith(prefix) for part in parts):
            return kind
    if isinstance(module, nn.Embedding):
        return "embeddings"
    return "norms" if is_norm(module) else "other weights"
