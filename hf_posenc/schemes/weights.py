"""Weights that a formula reads, and that no layer is called with.

Other libraries take an `nn.Linear` or `nn.Embedding` for a layer that computes when it is called: PEFT's
``target_modules="all-linear"`` wraps it, ``torch.ao.quantization.quantize_dynamic`` packs its weight away. A formula
that reads the weight would go on without the adapter, or find no weight. The classes here have the same parameters,
under the same names and with the same values at first, and are no layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearWeights(nn.Module):
    """``weight [outputs, inputs]`` and ``bias [outputs]`` of a linear map, drawn as those of `nn.Linear`."""

    bias: Tensor  # or None, which the formula knows

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.register_parameter("bias", nn.Parameter(torch.empty(outputs)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw weight and bias."""
        nn.Linear.reset_parameters(self)  # type: ignore[arg-type]  # which reads these two, and nothing else

    def extra_repr(self) -> str:
        """Sizes, for ``print(model)``."""
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, bias={self.bias is not None}"


class TableWeights(nn.Module):
    """``weight [rows, width]`` of a table, drawn as that of `nn.Embedding`."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        nn.init.normal_(self.weight)

    def extra_repr(self) -> str:
        """Sizes, for ``print(model)``."""
        return ", ".join(map(str, self.weight.shape))
