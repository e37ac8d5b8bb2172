"""What an adapter must say of its model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from hf_posenc.patches.shared.rope_parameters import TRAINED_LENGTH, TRAINED_THETA, UNSCALED, rotations
from hf_posenc.schemes.host_rotation import HostRotation

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from hf_posenc.core.geometry import Geometry
    from hf_posenc.schemes.base import Scheme


def eager_mask(attention: Any, hidden: Tensor) -> Tensor | None:
    """The causal mask that transformers' eager attention of a decoder needs, ``[1, 1, token, token]``.

    None for an encoder, and for other backends, which apply causality without one.

    Args:
        attention: a module, patched or not.
        hidden: ``[1, token, width]``.
    """
    return causal_mask(hidden) if attention.is_causal and attention.config._attn_implementation == "eager" else None


def causal_mask(hidden: Tensor) -> Tensor:
    """What is added to scores for causality, ``[1, 1, token, token]``, for states ``[batch, token, width]``."""
    length, lowest = hidden.shape[1], torch.finfo(hidden.dtype).min
    return torch.full((1, 1, length, length), lowest, dtype=hidden.dtype, device=hidden.device).triu(1)


def heads_of(x: Tensor, head_dim: int) -> Tensor:
    """``[…, n, heads · head_dim]`` to ``[…, heads, n, head_dim]``."""
    return x.unflatten(-1, (-1, head_dim)).transpose(-3, -2)


class Adapter(ABC):
    """Where one family of models keeps position.

    Class attributes:
        name: its ``config.model_type``, set by `register_adapter`.
        attention: each attention class of the model, and the `PatchedAttention` that replaces it.
        base_class: the model without a head.
        length_dependent: scalings of the model whose frequencies change with the length; nothing can be built on them.
    """

    name: ClassVar[str]
    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]]
    base_class: ClassVar[type[nn.Module]]
    length_dependent: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def geometry(self, config: PreTrainedConfig, *, trained_length: int, target_length: int) -> Geometry:
        """The model's shapes, its rotation or the rows of its table, with the lengths of a patch."""

    def trained_length(self, config: PreTrainedConfig) -> int:
        """Tokens of the texts that the weights were trained on, before any scaling that the configuration has."""
        stated = [one.get("original_max_position_embeddings") for one in rotations(config).values()]
        stated.append(getattr(config, TRAINED_LENGTH, None))
        return int(min(filter(None, stated), default=None) or config.max_position_embeddings)

    def scaled_already(self, config: PreTrainedConfig) -> str | None:
        """The ``rope_type`` of a scaling in the model's own configuration, of any type of layer, or None.

        Also a larger base than that of the training, where a configuration says both.
        """
        kinds = [one.get("rope_type", UNSCALED) for one in rotations(config).values()]
        larger = None if getattr(config, TRAINED_THETA, None) is None else "a larger rope_theta"
        return next((kind for kind in kinds if kind != UNSCALED), larger)

    def reach(self, config: PreTrainedConfig) -> int:
        """Tokens that the unpatched model reads: those its configuration scales it to, or the trained length."""
        trained = self.trained_length(config)
        return trained if self.scaled_already(config) is None else max(trained, int(config.max_position_embeddings))

    def host_length(self, config: PreTrainedConfig) -> int:
        """``max_position_embeddings`` of the unpatched model; the trained length where its configuration has none."""
        declared = getattr(config, "max_position_embeddings", None)
        return self.trained_length(config) if declared is None else declared

    def own_positions(self, base: nn.Module, geometry: Geometry, layer: int) -> Scheme:
        """The scheme that stands for the model's own positions in a layer, where another scheme keeps them."""
        return HostRotation(geometry)

    def base_model(self, model: PreTrainedModel) -> PreTrainedModel | None:
        """The base model inside ``model`` (or itself)."""
        return next((m for m in model.modules() if isinstance(m, self.base_class)), None)

    def attentions(self, base: nn.Module) -> Iterator[nn.Module]:
        """Self-attention modules in the order of the layers."""
        return (m for m in base.modules() if type(m) in self.attention and not getattr(m, "is_cross_attention", False))

    def attention_count(self, base: nn.Module) -> int:
        """How many self-attention modules a loaded model has, whatever its configuration says."""
        return sum(1 for _ in self.attentions(base))

    def remembered(self, base: nn.Module) -> Iterator[tuple[str, str, Any]]:
        """What modules of a loaded model were built with: module, attribute, what the configuration gives it now."""
        return iter(())

    def patched_class(self, attention: nn.Module) -> type[nn.Module]:
        """The class that replaces an attention module's own."""
        return self.attention[type(attention)]

    def attributes(self, base: nn.Module) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
        """What patched modules need to know beside their class: attributes named ``posenc_…``, by default none."""
        return iter(())

    @abstractmethod
    def swaps(self, base: nn.Module, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        """Modules other than attention that must change class, and the class."""

    def frozen(self, base: nn.Module, scheme: Scheme) -> Iterator[nn.Parameter]:
        """Parameters the scheme puts out of use, by default none."""
        return iter(())

    @abstractmethod
    def probe(self, base: nn.Module, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        """One layer's attention output, ``[1, token, channels]``, with everything that position does to it on the way.

        The proof that a patch took effect compares it before and after.

        Args:
            base: the base model, patched or not.
            hidden: synthetic states ``[1, token, width]``, as the embeddings would give them.
            positions: of the tokens, ``[1, token]``, up to the target length; int64, or float32 in models that rotate.
            layer: which layer.
        """
