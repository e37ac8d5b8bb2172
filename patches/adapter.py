"""`Adapter`: the base class of all adapters, which describe where a family of models keeps position."""

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
    """Additive causal mask ``[1, 1, token, token]`` for states ``[batch, token, width]``."""
    length, lowest = hidden.shape[1], torch.finfo(hidden.dtype).min
    return torch.full((1, 1, length, length), lowest, dtype=hidden.dtype, device=hidden.device).triu(1)


def heads_of(x: Tensor, head_dim: int) -> Tensor:
    """Split ``[…, n, heads · head_dim]`` into heads, ``[…, heads, n, head_dim]``."""
    return x.unflatten(-1, (-1, head_dim)).transpose(-3, -2)


class Adapter(ABC):
    """Where one family of models keeps position.

    Class attributes:
        name: ``config.model_type`` of the family, set by `register_adapter`.
        attention: maps each attention class of the model to the `PatchedAttention` that replaces it.
        base_class: class of the model without a head.
        length_dependent: RoPE scalings whose frequencies change with the text length; no scheme can build on them.
    """

    name: ClassVar[str]
    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]]
    base_class: ClassVar[type[nn.Module]]
    length_dependent: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def geometry(self, config: PreTrainedConfig, *, trained_length: int, target_length: int) -> Geometry:
        """The model's shapes and its rotation or table, with the lengths of a patch."""

    def trained_length(self, config: PreTrainedConfig) -> int:
        """Length in tokens of the training texts, before any scaling in the configuration."""
        stated = [one.get("original_max_position_embeddings") for one in rotations(config).values()]
        stated.append(getattr(config, TRAINED_LENGTH, None))
        return int(min(filter(None, stated), default=None) or config.max_position_embeddings)

    def scaled_already(self, config: PreTrainedConfig) -> str | None:
        """The ``rope_type`` of a RoPE scaling in the model's own configuration, or None.

        A larger base than in training counts as a scaling, if the configuration gives both.
        """
        kinds = [one.get("rope_type", UNSCALED) for one in rotations(config).values()]
        larger = None if getattr(config, TRAINED_THETA, None) is None else "a larger rope_theta"
        return next((kind for kind in kinds if kind != UNSCALED), larger)

    def reach(self, config: PreTrainedConfig) -> int:
        """Length in tokens of the texts that the unpatched model reads: the scaled or the trained length."""
        trained = self.trained_length(config)
        return trained if self.scaled_already(config) is None else max(trained, int(config.max_position_embeddings))

    def host_length(self, config: PreTrainedConfig) -> int:
        """``max_position_embeddings`` of the unpatched model, or the trained length if the configuration has none."""
        declared = getattr(config, "max_position_embeddings", None)
        return self.trained_length(config) if declared is None else declared

    def own_positions(self, base: nn.Module, geometry: Geometry, layer: int) -> Scheme:
        """Scheme of the model's own positions in a layer, for patches that keep them."""
        return HostRotation(geometry)

    def base_model(self, model: PreTrainedModel) -> PreTrainedModel | None:
        """The base model inside ``model`` (or itself)."""
        return next((m for m in model.modules() if isinstance(m, self.base_class)), None)

    def attentions(self, base: nn.Module) -> Iterator[nn.Module]:
        """Self-attention modules in the order of the layers."""
        return (m for m in base.modules() if type(m) in self.attention and not getattr(m, "is_cross_attention", False))

    def attention_count(self, base: nn.Module) -> int:
        """Number of self-attention modules in a loaded model, independent of its configuration."""
        return sum(1 for _ in self.attentions(base))

    def remembered(self, base: nn.Module) -> Iterator[tuple[str, str, Any]]:
        """Attributes that the configuration decides: module name, attribute, value under the current configuration."""
        return iter(())

    def patched_class(self, attention: nn.Module) -> type[nn.Module]:
        """The class that replaces an attention module's own."""
        return self.attention[type(attention)]

    def attributes(self, base: nn.Module) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
        """Attributes to set on modules of a patched model, with names ``posenc_…``; by default none."""
        return iter(())

    @abstractmethod
    def swaps(self, base: nn.Module, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        """Modules other than attention whose class changes, each with its new class."""

    def frozen(self, base: nn.Module, scheme: Scheme) -> Iterator[nn.Parameter]:
        """Parameters that the scheme leaves unused, by default none."""
        return iter(())

    @abstractmethod
    def probe(self, base: nn.Module, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        """Attention output of one layer, ``[1, token, channels]``, including every effect of position.

        The proof that a patch took effect compares this output before and after the patch.

        Args:
            base: the base model, patched or not.
            hidden: synthetic states ``[1, token, width]``, as the embeddings would give them.
            positions: positions ``[1, token]`` up to the target length; int64, or float32 in models that rotate.
            layer: number of the layer.
        """
