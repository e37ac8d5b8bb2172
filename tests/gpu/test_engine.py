"""The engine on a GPU against the formula in float64, for every kind of terms.

Flex attention is compiled for each kind of call, which takes seconds: kinds that it computes run in few shapes, in
processes of their own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cuda
from hf_posenc.attention.routes import flex
from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import Band
from hf_posenc.core.terms import Terms, ToeplitzBias

from ..attention.formula import ALL, WINDOW, Problem, two_regions, wave
from .models import gap

# Of the largest entry. Half precision rounds inputs of products, weights and output: what the kernels are checked with
# before their first use. In float32, products in TF32 (off by default) would be off by 1e-3, rounding alone by 1e-6.
ALLOWED = {**flash_cuda.ALLOWED, torch.float32: 1e-4}
DTYPES = tuple(ALLOWED)
FLEX = (
    *("key bias", "toeplitz", "learned table", "two tables", "key bias, wave and window", "scaled rows"),
    *("regions with a bias", "regions within a window"),
)
MERGED = ("plain", "two regions", "window", "chunks", "first keys", "split by row")
BLOCKS = ("content", "sink", "values")
ROUTES = {
    **dict.fromkeys(FLEX, "flex_cuda"), **dict.fromkeys(MERGED, "regions"),
    **dict.fromkeys(BLOCKS, "dense_blocks"), "rows": "length_rotation",
}  # fmt: skip
LENGTH = 150  # no multiple of a kernel's block
SHAPES: dict[str, dict] = {
    "prefill": {"queries": LENGTH},
    "decode": {"queries": 1, "keys": LENGTH},
    "padded": {
        "queries": LENGTH, "real": torch.tensor([[0] * 31 + [1] * (LENGTH - 31), [1] * LENGTH]), "mask_kind": "bool",
    },
    "padded at the end": {
        "queries": LENGTH, "real": torch.tensor([[1] * (LENGTH - 31) + [0] * 31, [1] * LENGTH]), "mask_kind": "bool",
    },
    "one key head": {"queries": LENGTH, "kv_heads": 1},
    "a key head each": {"queries": LENGTH, "kv_heads": 4},
    "both ways": {"queries": LENGTH, "causal": False},
}  # fmt: skip


def call_on(device: str, problem: Problem) -> tuple[AttentionCall, list[Tensor]]:
    """The call of a problem with its tensors on a device, and what has a gradient there."""
    leaves = [leaf.detach().to(device).requires_grad_(problem.grad) for leaf in problem.leaves]
    regions = problem.position.regions
    learned = leaves[-1] if problem.learned is not None else None
    here, there = problem.query_positions().to(device), problem.key_positions().to(device)
    ctx = PositionContext(here, there, problem.causal, problem.real is None)
    with torch.device(device):  # constants of the terms
        terms = problem.position.terms(ctx, learned)
    mask = problem.mask()
    call = AttentionCall(
        tuple(leaves[:regions]), tuple(leaves[regions : 2 * regions]), leaves[2 * regions], terms, ctx,
        None if mask is None else mask.to(device), problem.scaling,
    )  # fmt: skip
    return call, leaves


def at_real_tokens(problem: Problem, mixed: Tensor) -> Tensor:
    """The output with zeros at padding, where it is undefined."""
    if problem.real is None:
        return mixed
    return mixed.masked_fill(~problem.real.bool()[:, None, :, None].to(mixed.device), 0.0)


def deviation(device: str, problem: Problem) -> float:
    """Of the output, relative to the formula's largest entry."""
    with torch.no_grad():
        ours = dispatch.attend(call_on(device, problem)[0])
    assert ours.device.type == torch.device(device).type
    assert ours.dtype == problem.dtype
    return gap(at_real_tokens(problem, ours.cpu().double()), at_real_tokens(problem, problem.expected()))


def gradient_deviation(device: str, problem: Problem) -> float:
    """The largest of all gradients, each relative to the formula's largest entry."""
    exact = [leaf.detach().double().requires_grad_() for leaf in problem.leaves]
    mixed = at_real_tokens(problem, problem.expected(leaves=exact))
    weight = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(1)).to(problem.dtype)
    theirs = torch.autograd.grad((mixed * weight.double()).sum(), exact)
    call, leaves = call_on(device, problem)
    out = at_real_tokens(problem, dispatch.attend(call))
    ours = torch.autograd.grad(out, leaves, weight.to(device))
    return max(gap(one, two) for one, two in zip(ours, theirs, strict=True))


def shaped(kind: str, shape: str, dtype: torch.dtype = torch.float32, head_dim: int = 16, **more: object) -> Problem:
    return Problem(kind, **SHAPES[shape], dtype=dtype, head_dim=head_dim, **more)  # type: ignore[arg-type]


def give(problem: Problem, terms: Terms) -> None:
    """Give the engine other terms than the formula."""
    problem.position = replace(problem.position, terms=lambda ctx, learned: terms)


def compiles_nothing(family: tuple) -> None:
    raise AssertionError(f"a kernel for {family}")


def together(group: str, *cases: tuple) -> list:
    """Cases that share compiled kernels."""
    return [pytest.param(*case, marks=pytest.mark.xdist_group(f"flex {group}")) for case in cases]


HALF = torch.bfloat16, 64
FEW = ("key bias", "learned table")
FLEX_CASES = [
    *together("engine prefill", *((kind, "prefill", torch.float32, 16) for kind in FLEX)),
    *together("engine padded", *((kind, "padded", torch.float32, 16) for kind in (*FEW, "scaled rows"))),
    *together("engine padded", *((kind, "both ways", torch.float32, 16) for kind in ("plain", "toeplitz", "window"))),
    *together("engine padded", ("toeplitz", "prefill", torch.float32, 64)),
    *together("engine bfloat16", *((kind, "prefill", *HALF) for kind in FEW)),
    *together("engine float16", ("key bias, wave and window", "prefill", torch.float16, 64)),
    *together("engine float16", ("key bias", "one key head", torch.float16, 64)),
]  # fmt: skip
FLEX_TRAINED = [
    *together("engine trained", *((kind, "prefill", torch.float32, 16) for kind in (*FEW, "scaled rows"))),
    *together("engine bfloat16", *((kind, "prefill", *HALF) for kind in FEW)),
    *together("engine float16", ("learned table", "prefill", torch.float16, 64)),
]


@pytest.mark.parametrize(("kind", "shape", "dtype", "head_dim"), FLEX_CASES)
def test_compiled(kind: str, shape: str, dtype: torch.dtype, head_dim: int, device: str) -> None:
    problem = shaped(kind, shape, dtype, head_dim)
    assert deviation(device, problem) <= ALLOWED[dtype]


@pytest.mark.parametrize(("kind", "shape", "dtype", "head_dim"), FLEX_TRAINED)
def test_compiled_gradients(kind: str, shape: str, dtype: torch.dtype, head_dim: int, device: str) -> None:
    assert gradient_deviation(device, shaped(kind, shape, dtype, head_dim, grad=True)) <= ALLOWED[dtype]


@pytest.mark.xdist_group("flex engine prefill")
def test_a_mirrored_distance_shows(device: str) -> None:
    problem = shaped("toeplitz", "prefill")
    terms = Terms(bias=(ToeplitzBias(lambda d: wave(-d.float(), 4)),))
    give(problem, terms)
    assert deviation(device, problem) > 10 * ALLOWED[torch.float32]


@pytest.mark.xdist_group("flex engine prefill")
@pytest.mark.parametrize("kind", ALL)
def test_route(kind: str, device: str) -> None:
    """Each kind is computed where these tests believe it is; a kernel that fails its own check is left out."""
    call, _ = call_on(device, shaped(kind, "prefill"))
    with torch.no_grad():
        assert dispatch.route(call) == ROUTES[kind]


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", FLEX)
def test_decoding_compiles_nothing(
    kind: str, dtype: torch.dtype, head_dim: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex, "kernel", compiles_nothing)
    assert deviation(device, shaped(kind, "decode", dtype, head_dim)) <= ALLOWED[dtype]


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.float32, 16), (torch.bfloat16, 64), (torch.float16, 16)])
@pytest.mark.parametrize("shape", ["prefill", "padded at the end"])
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind not in FLEX])
def test_gradients(kind: str, shape: str, dtype: torch.dtype, head_dim: int, device: str) -> None:
    assert gradient_deviation(device, shaped(kind, shape, dtype, head_dim, grad=True)) <= ALLOWED[dtype]


@pytest.mark.parametrize("shape", ["prefill", "decode"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_boundary_off_by_one_shows(dtype: torch.dtype, shape: str, device: str) -> None:
    wrong = {
        "two regions": Terms(regions=two_regions(WINDOW + 1), logit_scale=1.1),
        "window": Terms(visible=Band(-WINDOW, WINDOW + 1), logit_scale=1.2),
    }
    for kind, terms in wrong.items():
        problem = shaped(kind, shape, dtype)
        give(problem, terms)
        assert deviation(device, problem) > 1.5 * ALLOWED[dtype], kind
