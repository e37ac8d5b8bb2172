"""The layers of a base model that training methods name: linear layers, norms, embeddings and learned positions."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import Conv1D

from hf_posenc.patching.state import base_model_of


def linear_layers(model: nn.Module) -> list[str]:
    """Names of the base's linear layers, without those of schemes, and routers that return more than a product."""
    return sorted({last_name(name) for name, module in base_modules(model) if is_linear(module)})


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
    names = norm_layers(model)
    embeddings = next(last_name(name) for name, module in base_modules(model) if module is base.get_input_embeddings())
    tied = bool(getattr(base.config, "tie_word_embeddings", False))
    if train_embeddings and (not tied or embeddings in EMBEDDING_LAYER_NAMES):
        names.add(embeddings)
    if scheme_parameter_names(model):
        names.add("posenc")
    return {"modules_to_save": sorted(names), "ensure_weight_tying": tied and embeddings in names}


def norm_layers(model: nn.Module) -> set[str]:
    """Names of the base's normalisation layers; PEFT takes all modules whose names end with one of them."""
    norms = {module for _, module in base_modules(model) if is_norm(module)}
    schemes = [name for name, _ in model.named_modules() if "posenc" in name.split(".")]
    return {distinct_end(name, schemes) for name, module in model.named_modules() if module in norms}


def distinct_end(name: str, others: list[str]) -> str:
    """The shortest end of a module's name, in whole parts, that none of the others ends with; else all of it.

    Llama has a ``norm``, and so does DeBERTa's table: trained as part of the scheme and again alone, PEFT could not
    load it.
    """
    parts = name.split(".")
    ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
    return next((end for end in ends if not any(other.endswith(end) for other in others)), name)


def scheme_parameter_names(model: nn.Module) -> list[str]:
    """Names of the parameters that belong to schemes."""
    return [name for name, _ in base_model_of(model)[0].named_parameters() if "posenc" in name.split(".")]


def base_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules of the base model by name, without those of schemes."""
    base, _ = base_model_of(model)
    return [(name, module) for name, module in base.named_modules() if name and "posenc" not in name.split(".")]


def last_name(name: str) -> str:
    """The last part of a module's name."""
    return name.rpartition(".")[2]
