"""Memory layout that private kernels take for granted: the channels of a head lie side by side."""

from __future__ import annotations

from torch import Tensor


def channels_inner(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors ``[…, dim]``, copied where their channels are apart, as a convolution leaves them.

    The CPU kernel would read what lies beside the first channel, in silence; those of CUDA raise.
    """
    return tuple(x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous() for x in tensors)
