"""Switch off the rotary modules of a model, so that its own forward rotates nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.patches.general.observation import RotationShape, kind_of_call

SILENT = "posenc_silent"
"""On a silent rotary module: the shape of what it returns, by kind of call."""


class SilentRotary(nn.Module):
    """Mixin of a rotary module: returns cosines of one and sines of zero, which rotate nothing."""

    prefix = "Silent"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A rotation by nothing for all positions, of the shapes that the model's own would have, without memory."""
        positions = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and not x.is_floating_point())
        hidden = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()), None)
        own: RotationShape = self.__dict__[SILENT][kind_of_call(*args, **kwargs)]
        dtype = torch.complex64 if own.complex else torch.float32 if hidden is None else hidden.dtype
        shape = (*positions.shape[-own.axes :], *own.trailing)
        one = torch.ones((), dtype=dtype, device=positions.device).expand(shape)
        return one if own.complex else (one, torch.zeros((), dtype=dtype, device=positions.device).expand(shape))
