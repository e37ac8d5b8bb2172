"""Detect tracing, where a call must stay valid for other inputs and lengths.

A graph of `torch.compile`, `torch.export` or `torch.jit.trace` is made once and run on other inputs: a value read from
one input would be wrong for the next. A dynamic length that is read as a number would specialize the graph, and a
compiler would recompile for every length.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def is_traced() -> bool:
    """Whether this call is being traced: no value of a tensor may be read."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._are_functorch_transforms_active()


def is_captured(x: Tensor) -> bool:
    """Whether a CUDA graph is being captured on the device of a tensor: no value of it may be read."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def has_values(x: Tensor) -> bool:
    """Whether values of a tensor may be read: it is neither traced, nor fake, nor on the meta device."""
    return not (is_traced() or x.is_meta or isinstance(x, FakeTensor))


def has_dynamic_length(*lengths: int) -> bool:
    """Whether a traced graph must be valid for any of these lengths; false outside of tracing and for fixed lengths.

    `torch.jit.trace` passes every length as a tensor and does not tell whether it is dynamic.
    """
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import has_static_value  # slow to import; the compiler has it

        return not all(has_static_value(length) for length in lengths)
    return torch._C._is_tracing() or torch._C._are_functorch_transforms_active()


def is_either(size: int, one: int, other: int) -> bool:
    """Whether a size equals one of two numbers. In graphs they may be symbols, which ``in`` does not compare."""
    return size == one or bool(size == other)
