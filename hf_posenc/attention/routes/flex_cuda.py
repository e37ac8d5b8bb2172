"""Route of structured biases on CUDA: flex attention, if it agrees with the formula on a small example.

Flex kernels are generated for each dtype and head size, and some do not compile or are wrong. Each kind of call is
computed once on a small example. A kind that fails there, or does not compile for another shape, takes another route,
with a warning. Compiling takes seconds, so an example has gradients or merged regions only if the calls have them.
Calls with few scores, such as those of the proof of effect, take other routes. So do decode queries: `dense_blocks`
computes one in a dozen small kernels, which take less time than the call of a compiled one, and none has to be compiled
for another number of keys. In a compiled model, torch 2.11 crashes if a decode query under a mask comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import by_device
from hf_posenc.attention.kernels.flash_cuda import ALLOWED, relative_gap, warn_of_unused
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes import dense_blocks, flex
from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import EVERYTHING, Band, Region
from hf_posenc.core.terms import KeyBias, Terms, ToeplitzBias
from hf_posenc.core.tracing import is_traced

FEW = 2**20  # scores, 4 MiB: other routes compute them long before a kernel is compiled


def accepts(call: AttentionCall) -> bool:
    """Whether a call on CUDA has biases or bands that flex attention can compute, and a boolean mask or none."""
    return (
        by_device.on_cuda(call.values.device)
        and (call.query_length > 1 or torch.is_grad_enabled())
        and (is_traced() or len(call.values) * call.heads * call.query_length * call.key_length > FEW)
        and (call.mask is None or (call.mask.dtype == torch.bool and call.mask.shape[1] == 1))
        and flex.refusal_reason(call) is None
        and agrees_with_formula(*kind_of(call), is_traced())
    )


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``, under the call's own mask."""
    if is_traced():
        return flex.attend(call, call.mask)
    try:
        return flex.attend(call, call.mask)
    except RuntimeError as error:
        from torch._dynamo.exc import BackendCompilerFailed  # takes a second, but not once something was compiled

        if not isinstance(error, BackendCompilerFailed):  # for example, out of memory
            raise
        give_up(kind_of(call), first_line(error))
        return dense_blocks.attend(call)


class Kind(NamedTuple):
    """Properties of the calls that share one check.

    Attributes:
        dtype: dtype of the values.
        dim: channels of a head.
        device: name of the device.
        trained: whether gradients are computed.
        merged: whether regions are merged, which needs their log-sum-exp.
    """

    dtype: torch.dtype
    dim: int
    device: str
    trained: bool
    merged: bool


def kind_of(call: AttentionCall) -> Kind:
    """The kind of a call."""
    values, merged = call.values, flex.merges(call.terms)
    return Kind(values.dtype, values.shape[-1], str(values.device), torch.is_grad_enabled(), merged)


@torch.compiler.assume_constant_result
def agrees_with_formula(dtype: torch.dtype, dim: int, device: str, trained: bool, merged: bool, tracing: bool) -> bool:
    """Whether compiled flex attention agrees with the formula on a small example of a `Kind`.

    Nothing can be compiled for a check while a model is being compiled; then only kinds known to fail are avoided. The
    fields are separate arguments, because the compiler passes no named tuples.
    """
    kind = Kind(dtype, dim, device, trained, merged)
    return kind.dtype in ALLOWED and kind not in FAILED and (tracing or _checked(kind))


FAILED: set[Kind] = set()


def give_up(kind: Kind, reason: str) -> None:
    """Warn, and compute no other call of this kind by flex attention."""
    FAILED.add(kind)
    warn_of_unused("flex attention", "biases", *kind[:3], reason)


def first_line(error: Exception) -> str:
    """Type and first line of an error, or of the inner error that the compiler wrapped."""
    cause = getattr(error, "inner_exception", error)
    return f"{type(cause).__name__}: {cause}".split("\n")[0]


@lru_cache(maxsize=64)
def _checked(kind: Kind) -> bool:
    try:
        off = deviation(kind)
        reason = None if off <= ALLOWED[kind.dtype] else f"it is off by {off:.1e} on a small example"
    except Exception as error:  # the compiler or a driver may raise any type
        reason = first_line(error)
    if reason is not None:
        give_up(kind, reason)
    return reason is None


def deviation(kind: Kind) -> float:
    """Relative deviation of the output and gradients of a small call from those of the general route."""
    dtype, dim, device, trained, merged = kind
    draw, length = torch.Generator().manual_seed(0), 200
    shapes = ((1, 4, length, dim), (1, 2, length, dim), (1, 2, length, dim), (1, 4, length, dim))
    q, k, v, weight = (torch.randn(shape, generator=draw).to(device, dtype) for shape in shapes)
    learned = torch.randn(4, 41, generator=draw).to(device)
    positions = torch.arange(length, device=device)[None]
    linear = torch.tensor([0.5, 0.25, 0.125, 0.0], dtype=torch.float64, device=device)[:, None] * positions
    leaves = [x.requires_grad_() for x in ((q, k, v, learned, linear) if trained else ())]
    regions = (Region(Band(None, 70)), Region(Band(70, None))) if merged else (Region(EVERYTHING),)

    def outputs(route: Callable[[AttentionCall], Tensor]) -> tuple[Tensor, ...]:
        table = ToeplitzBias(lambda distance: learned[:, distance.clamp(-20, 20) + 20])
        terms = Terms(bias=(KeyBias(linear[None]), table), regions=regions)
        ctx, count = PositionContext(positions, positions, True, True), len(regions)
        call = AttentionCall((q,) * count, (k,) * count, v, terms, ctx, None, dim**-0.5)
        out = route(call)
        return (out.detach(), *(torch.autograd.grad(out, leaves, weight) if leaves else ()))

    with torch.set_grad_enabled(trained):
        results, expected = outputs(lambda call: flex.attend(call, call.mask)), outputs(dense_blocks.attend)
    return max(relative_gap(result, exact.double()) for result, exact in zip(results, expected, strict=True))


ROUTE = Route("flex_cuda", accepts, lambda call: attend)
