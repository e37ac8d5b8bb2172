"""Find the base model to patch: the innermost part of a model that embeds tokens itself and has attention."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from hf_posenc.errors import UnsupportedModel
from hf_posenc.patches.general.blindness import REMEDY
from hf_posenc.patches.general.inline import attention_modules


def innermost(model: nn.Module) -> PreTrainedModel | None:
    """The innermost model of transformers with token embeddings and attention; None if there is not exactly one."""
    candidates = [module for module in model.modules() if reads_tokens(module)]
    inner = [one for one in candidates if not any(other is not one and other in one.modules() for other in candidates)]
    return inner[0] if len(inner) == 1 else None


def reads_tokens(module: nn.Module) -> bool:
    """Whether a module is a model of transformers that embeds tokens itself, and whose attention can be intercepted."""
    return embeds_tokens(module) and bool(attention_modules(module))


def embeds_tokens(module: nn.Module) -> bool:
    """Whether a module is a model of transformers that embeds tokens itself."""
    if not isinstance(module, PreTrainedModel):
        return False
    try:
        embedding = module.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return False
    if not isinstance(embedding, nn.Module):
        return False
    parts = list(embedding.modules())  # PEFT wraps an embedding to train it
    reads_images = any(isinstance(part, nn.Conv2d) for part in parts)  # its table then embeds patch positions
    return any(isinstance(part, nn.Embedding) for part in parts) and not reads_images


def unsupported(model: nn.Module) -> UnsupportedModel:
    """The error for a model that even the general adapter cannot patch."""
    inside = [type(module).__name__ for module in model.modules() if reads_tokens(module)]
    if len(inside) > 1:
        return UnsupportedModel(
            f"This {type(model).__name__} holds several models that read tokens ({', '.join(inside)}). "
            "Patch one of them, such as model.get_decoder()."
        )
    if attentions := {type(module).__name__ for module in attention_modules(model)}:
        return UnsupportedModel(
            f"This {type(model).__name__} has attention ({', '.join(attentions)}), and get_input_embeddings of no "
            "model around it finds an nn.Embedding. Define that method in the class of the model without a head."
        )
    return UnsupportedModel(
        f"No attention of this {type(model).__name__} goes through the AttentionInterface of transformers, so it "
        f"cannot be intercepted. {REMEDY}"
    )
