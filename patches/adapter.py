"""What an adapter must say of its model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from hf_posenc.core.geometry import Geometry
    from hf_posenc.schemes.base import Scheme


def eager_mask(attention: Any, hidden: Tensor) -> Tensor | None:
    """What transformers' eager attention of a decoder needs to be told, ``[1, 1, token, token]``; other backends know.

    Args:
        attention: a module, patched or not.
        hidden: ``[1, token, width]``.
    """
    if not attention.is_causal or attention.config._attn_implementation != "eager":
        return None
    length, lowest = hidden.shape[1], torch.finfo(hidden.dtype).min
    return torch.full((1, 1, length, length), lowest, dtype=hidden.dtype, device=hidden.device).triu(1)


class Adapter(ABC):
    """Where one family of models keeps position.

    Class attributes:
        attention: the host's attention classes and what replaces them.
        base_class: the host's base model.
        length_dependent: scalings of the host whose frequencies change with the length; nothing can be built on them.
    """

    name: ClassVar[str]
    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]]
    base_class: ClassVar[type[nn.Module]]
    length_dependent: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def geometry(self, config: PreTrainedConfig, *, trained_length: int, target_length: int) -> Geometry:
        """The host's shapes, with the lengths of a patch."""

    @abstractmethod
    def trained_length(self, config: PreTrainedConfig) -> int:
        """What the weights saw, looking through a scaling the configuration already has."""

    def scaled_already(self, config: PreTrainedConfig) -> str | None:
        """Name of a position scaling in the host's own configuration, or None."""
        return None

    def base_model(self, model: PreTrainedModel) -> PreTrainedModel | None:
        """The base model inside ``model`` (or itself)."""
        return next((m for m in model.modules() if isinstance(m, self.base_class)), None)  # type: ignore[return-value]

    def attentions(self, base: nn.Module) -> Iterator[nn.Module]:
        """Self-attention modules in the order of the layers."""
        return (m for m in base.modules() if type(m) in self.attention and not getattr(m, "is_cross_attention", False))

    @abstractmethod
    def swaps(self, base: nn.Module, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        """Modules other than attention that must change class, and the class."""

    @abstractmethod
    def frozen(self, base: nn.Module, scheme: Scheme) -> Iterator[nn.Parameter]:
        """Parameters the scheme puts out of use."""

    @abstractmethod
    def probe(self, base: nn.Module, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        """A layer's attention output on synthetic ``hidden [1, token, width]`` at ``positions [1, token]``,
        with everything position does to it on the way, patched or not."""
