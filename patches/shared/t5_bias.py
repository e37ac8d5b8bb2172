"""Learned distance bias of T5, mT5, UMT5 and MPNet, as a scheme for patches that keep the model's own positions.

    score[h, i, j] = q_i · k_j + T[bucket(i − j), h]

The table stays in the model. The model's own code computes the buckets, because it rounds a logarithm.
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

BiasOf = Callable[[Any, Tensor], Tensor]  # (module, distances query − key […]) to biases [heads, …]


class OwnBias(HostRotation):
    """Scheme that computes a layer's own bias from the model's table.

    Args:
        geometry: geometry of the stack.
        module: module with the table; the scheme refers to it and has no parameters.
        bias_of: function that reads the table as the model does.
        shared: whether all layers use this table.
    """

    module: nn.Module

    def __init__(self, geometry: Geometry, module: nn.Module, bias_of: BiasOf, *, shared: bool = True) -> None:
        super().__init__(geometry)
        self.idle = frozenset(("rotation",))
        self.__dict__["module"] = module  # no submodule: its parameters are not the scheme's
        self.bias_of, self.shared = bias_of, shared

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        """The model's own bias as a function of distance."""
        return ToeplitzBias(self.bias_at)

    def bias_at(self, distance: Tensor) -> Tensor:
        """Bias of ``distance […]`` (query − key), ``[heads, …]``, float32, with a gradient to the model's table."""
        return self.bias_of(self.module, distance)


def own_bias(attention: Any, distance: Tensor) -> Tensor:
    """Bias ``[heads, …]`` that a T5 attention module adds to scores at ``distance […]`` (query − key), float32."""
    bucket = T5Attention._relative_position_bucket(
        -distance,
        bidirectional=not attention.is_decoder,
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=attention.relative_attention_max_distance,
    )
    return biases(attention.relative_attention_bias, bucket)


def biases(table: nn.Module, bucket: Tensor) -> Tensor:
    """Biases ``[heads, …]`` of buckets ``[…]``, float32; calls the table, which PEFT or accelerate may wrap."""
    device: torch.device = table.weight.device  # type: ignore[assignment]
    rows: Tensor = table(bucket if device.type == "meta" else bucket.to(device))
    return rows.movedim(-1, 0).float().to(bucket.device)
