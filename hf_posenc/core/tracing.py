"""Whether a call is computed, or written down as a graph that is to hold for other texts, and for other lengths.

A graph of `torch.compile`, `torch.export` or `torch.jit.trace` is made once and run on texts nobody has seen: what is
read off the values of one text would be wrong for the next. Where its length is open, too, what is read off that ties
the graph to the one length, and a compiler makes another for every text.
"""

from __future__ import annotations

import torch


def is_traced() -> bool:
    """Whether this call is being traced: no value of a tensor may be read."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._are_functorch_transforms_active()


def transformed() -> bool:
    """Whether a transform of `torch.func` is at work: it writes nothing down, and sees through no operator of ours."""
    return torch._C._are_functorch_transforms_active()


def has_dynamic_length(*lengths: int) -> bool:
    """Whether a graph is to hold for any such length; false outside a graph, and where lengths are fixed.

    `torch.jit.trace` hands out every length as a tensor, and does not say whether it will ever be another.
    """
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import has_static_value  # slow, and loaded by the compiler already

        return not all(has_static_value(length) for length in lengths)
    return torch.jit.is_tracing() or transformed()  # type: ignore[attr-defined]
