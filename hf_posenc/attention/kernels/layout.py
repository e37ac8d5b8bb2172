"""Memory layout that private kernels take for granted: the channels of a head lie side by side."""

from __future__ import annotations

from torch import Tensor


def channels_inner(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors ``[…, dim]``, all copied where the channels of one are apart, as a convolution leaves them.

    The CPU kernel would read what lies beside the first channel, in silence; those of CUDA raise.
    """
    for x in tensors:  # a loop, and no generator: decoding is a matter of few Python calls
        if x.stride(-1) != 1 and x.shape[-1] != 1:
            return tuple(map(Tensor.contiguous, tensors))
    return tensors
