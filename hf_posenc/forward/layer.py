"""What is known of a patched attention module by itself: its scheme, its model's settings, and which keys it sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from hf_posenc.schemes.base import Scheme

OWNER = "posenc_owner"  # of an attention module: its base model


class PatchedLayer(nn.Module):
    """Base of the mixin of patched attention modules, with what plans of calls and continuous batches read.

    Class attributes:
        host_eager: the host's own eager attention function.
        heeded_keywords: what the host's own forward passes to its attention function and the engine computes as well.
        score_factor: name of the attribute that is the factor of q · k.
        dropout_name: name of the attribute that drops attention weights, a module or a probability.
        flattens_ids: whether the base model takes ids with more axes, such as ``[batch, choice, token]``, as rows.
        batches_continuously: whether the model hands its attention what continuous batching hands to the model.
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

    @property
    def scheme(self) -> Scheme:
        """The layer's own scheme, or the one its model shares."""
        own: Any = self._modules.get("posenc")  # of a dictionary: `nn.Module.__getattr__` takes as long as a kernel
        return self.__dict__[OWNER]._modules["posenc"] if own is None else own

    @property
    def backend(self) -> str:
        """Name of the attention implementation in use."""
        return self.config._attn_implementation or "eager"

    @property
    def window(self) -> int | None:
        """Keys that a query of this layer sees at most; None for all before it."""
        return None

    @property
    def chunk(self) -> int | None:
        """Length of the parts of a text that see nothing of each other in this layer; None for one."""
        return None

    @property
    def live_dropout(self) -> float:
        """Probability of dropping an attention weight now; 0 outside training."""
        own: Any = getattr(self, self.dropout_name)
        return float(getattr(own, "p", own)) if self.training else 0.0  # of a module, or the number itself
