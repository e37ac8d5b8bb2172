"""The bias of the distance that T5, its like and MPNet have learned, where a scheme keeps the model's own positions.

    score[h, i, j] = q_i · k_j + T[bucket(i − j), h]

The table stays in the model. Buckets are those of the model's own code, which rounds a logarithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5Attention

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.schemes.host_rotation import HostRotation

BiasOf = Callable[[Any, Tensor], Tensor]  # of a module and distances (query − key), […], to biases [heads, …]


class OwnBias(HostRotation):
    """The bias that a layer has by itself, where a scheme keeps the model's own positions.

    Args:
        geometry: of the stack.
        module: that has the table; the scheme refers to it and learns nothing of its own.
        bias_of: how the model reads its table.
        shared: whether it is the table of all layers.
    """

    def __init__(self, geometry: Geometry, module: nn.Module, bias_of: BiasOf, *, shared: bool = True) -> None:
        super().__init__(geometry)
        self.idle = frozenset(("rotation",))
        self.__dict__["module"] = module  # no submodule: its parameters are not the scheme's
        self.bias_of, self.shared = bias_of, shared

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        """The model's own bias of any distances, ``[heads, …]``."""
        return ToeplitzBias(self.of)

    def of(self, distance: Tensor) -> Tensor:
        """Bias of ``distance […]`` (query − key), ``[heads, …]``, float32, with a gradient to the model's table."""
        return self.bias_of(self.__dict__["module"], distance)


def own_bias(attention: Any, distance: Tensor) -> Tensor:
    """What an attention module adds to its scores at ``distance […]`` (query − key), ``[heads, …]``, float32."""
    bucket = T5Attention._relative_position_bucket(
        -distance,
        bidirectional=not attention.is_decoder,
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=attention.relative_attention_max_distance,
    )
    return biases(attention.relative_attention_bias, bucket)


def biases(table: nn.Module, bucket: Tensor) -> Tensor:
    """Biases of buckets ``[…]``, ``[heads, …]``, float32. The table is called: PEFT or accelerate may be around it."""
    home: torch.device = table.weight.device  # type: ignore[assignment]
    found: Tensor = table(bucket if home.type == "meta" else bucket.to(home))
    return found.movedim(-1, 0).float().to(bucket.device)
