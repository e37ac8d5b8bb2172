"""Weights that a formula reads directly, without calling a layer.

Other libraries expect that an `nn.Linear` or `nn.Embedding` is called: PEFT's ``target_modules="all-linear"`` wraps it,
and ``torch.ao.quantization.quantize_dynamic`` replaces its weight. A formula that reads the weight would ignore the
adapter, or find no weight. The classes here are not layers, but have the same parameters, names and initial values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearWeights(nn.Module):
    """``weight [outputs, inputs]`` and ``bias [outputs]`` of a linear map, initialised like `nn.Linear`."""

    bias: Tensor  # or None; the formula that reads it knows which

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.register_parameter("bias", nn.Parameter(torch.empty(outputs)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw weight and bias."""
        nn.Linear.reset_parameters(self)  # type: ignore[arg-type]  # it reads only weight and bias

    def extra_repr(self) -> str:
        """Sizes, for ``print(model)``."""
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, bias={self.bias is not None}"


class TableWeights(nn.Module):
    """``weight [rows, width]`` of a table, initialised like `nn.Embedding`."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        nn.init.normal_(self.weight)

    def extra_repr(self) -> str:
        """Sizes, for ``print(model)``."""
        return ", ".join(map(str, self.weight.shape))
