"""Properties of a patched attention module: its scheme, its model's settings, and the keys that it sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from hf_posenc.schemes.base import Scheme

OWNER = "posenc_owner"  # of an attention module: its base model


class PatchedLayer(nn.Module):
    """Base of `PatchedAttention` with the properties that call plans and continuous batches read.

    Class attributes:
        host_eager: the host's own eager attention function.
        heeded_keywords: keywords that the host passes to its attention function and that the engine supports.
        score_factor: name of the attribute with the factor of q · k.
        dropout_name: name of the attribute with the dropout of attention weights, a module or a probability.
        flattens_ids: whether the base model reads ids with more axes, such as ``[batch, choice, token]``, as rows.
        batches_continuously: whether the model passes the keywords of continuous batching on to its attention.
        compiles_whole: whether `torch.compile` can follow the attention; else its graph ends there.
    """

    layer_idx: int | None
    scaling: float
    is_causal: bool
    config: PreTrainedConfig
    host_eager: ClassVar[Callable[..., tuple[Tensor, Tensor | None]]]
    heeded_keywords: ClassVar[frozenset[str]] = frozenset()
    score_factor: ClassVar[str] = "scaling"
    dropout_name: ClassVar[str] = "attention_dropout"
    flattens_ids: ClassVar[bool] = False
    batches_continuously: ClassVar[bool] = True
    compiles_whole: ClassVar[bool] = True

    @property
    def scheme(self) -> Scheme:
        """The layer's own scheme, or the scheme that all layers share."""
        own: Any = self._modules.get("posenc")  # not by attribute: `nn.Module.__getattr__` takes as long as a kernel
        return self.__dict__[OWNER]._modules["posenc"] if own is None else own

    @property
    def backend(self) -> str:
        """Name of the attention implementation in use."""
        return self.config._attn_implementation or "eager"

    @property
    def window(self) -> int | None:
        """Largest number of keys that a query of this layer sees; None for all earlier keys."""
        return None

    @property
    def chunk(self) -> int | None:
        """Length of the chunks that this layer attends within (Llama 4); None for the whole text."""
        return None

    @property
    def live_dropout(self) -> float:
        """Probability of dropping an attention weight; 0 outside training."""
        dropout: Any = getattr(self, self.dropout_name)
        return float(getattr(dropout, "p", dropout)) if self.training else 0.0
