"""CUDA routes, with emulated operators on the CPU: which calls they take, and their results.

No kernel is tested here. On a GPU each kind of kernel is compared with the formula before its first use; that this
comparison finds a wrong kernel, and that the call then goes another way, is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from hf_posenc.attention import dispatch
from hf_posenc.attention.kernels import by_device, flash_cpu, flash_cuda
from hf_posenc.attention.routes import band_cuts, flex, flex_cuda, regions
from hf_posenc.core import grouped_heads
from hf_posenc.core.regions import Band

from . import emulated
from .formula import ALL, Problem

REGIONS = ("two regions", "chunks", "first keys", "split by row")
KINDS = (*REGIONS, "window")


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors go where CUDA tensors would."""
    monkeypatch.setattr(by_device, "BY_DEVICE", {"cpu": flash_cuda})
    for name, operator in emulated.OPERATORS.items():
        monkeypatch.setattr(flash_cuda, name, operator)
    flash_cuda._checked.cache_clear()
    yield
    flash_cuda._checked.cache_clear()


def deviation(problem: Problem) -> float:
    assert regions.accepts(problem.call())
    return problem.deviation(regions.prepare(problem.call())(problem.call()))


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_and_a_new_token(kind: str, kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for keys in (2, 75):
        problem = Problem(kind, queries=1, keys=keys)
        assert deviation(problem) <= problem.limit
    monkeypatch.setattr(dispatch, "attend", lambda call: regions.prepare(call)(call))
    problem = Problem(kind, queries=75, kv_heads=kv_heads, grad=True)
    assert deviation(problem) <= problem.limit
    assert max(problem.gradient_deviations()) <= problem.limit


def test_bands_cover_every_pair_once_without_a_mask() -> None:
    """Pairs of every part, by a count of their own, are those of the band; none is there twice."""
    length = 41
    empty = (Band(41, 50), Band(7, 7))
    for band in (Band(0, 7), Band(None, 7), Band(5, 9), Band(7, None), Band(-3, 60), Band(40, 41), *empty):
        seen = torch.zeros(length, length, dtype=torch.int)
        found = list(band_cuts.windowed(0, band, 0, length, seen.device))
        assert len(found) == (band not in empty), "nothing is called for nothing"
        for part in found:
            rows, keys = torch.arange(length)[part.rows], torch.arange(length)[part.keys]
            inside = torch.ones(len(rows), len(keys), dtype=torch.bool).tril()
            if part.mask is not None:
                inside = inside.triu(1 - part.mask)  # type: ignore[operator]
            seen[part.rows, part.keys] += inside.int()
        distance = torch.arange(length)[:, None] - torch.arange(length)
        assert torch.equal(seen.bool(), band.holds(distance, torch.zeros_like(distance)) & (distance >= 0)), band


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_correct_kernel_passes_its_check(dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flash_cuda.agrees_with_formula(dtype, 16, "cpu")


BREAKAGES = {
    "an output of its own": lambda out, lse, *rest: (out * 1.1, lse, *rest),
    "base-2 logarithms": lambda out, lse, *rest: (out, lse / 0.6931, *rest),
    "numbers that are none": lambda out, lse, *rest: (out * torch.nan, lse, *rest),
}


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_wrong_kernel_warns_once_and_is_not_used(breakage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = emulated.efficient_forward
    monkeypatch.setattr(flash_cuda, "efficient_forward", lambda *a, **k: BREAKAGES[breakage](*right(*a, **k)))
    with pytest.warns(UserWarning, match="is not used for merged regions: it is off by"):
        assert not regions.accepts(Problem("two regions").call())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not regions.accepts(Problem("two regions").call())
    assert dispatch.route(Problem("two regions").call()) != "regions"


@pytest.mark.usefixtures("on_cuda")
def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = emulated.flash_backward
    monkeypatch.setattr(flash_cuda, "flash_backward", lambda *a, **k: tuple(reversed(right(*a, **k))))
    with pytest.warns(UserWarning, match="not used"):
        assert not flash_cuda.agrees_with_formula(torch.bfloat16, 16, "cpu")


class TestDecode:
    """A decode query, by two products with keys and values as they are cached."""

    KINDS = tuple(kind for kind in ALL if kind not in ("content", "values", "rows"))
    SHAPES = (
        {"kv_heads": 1},
        {"unwritten": 3, "mask_kind": "bool"},
        {"real": torch.tensor([[0] * 7 + [1] * 23, [1] * 30]), "mask_kind": "bool"},
    )

    @pytest.fixture(autouse=True)
    def emulated_products(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(by_device, "BY_DEVICE", {"cpu": flash_cuda})
        for kernel in (flash_cuda, flash_cpu):  # no route that needs one takes the call
            monkeypatch.setattr(kernel, "usable", lambda *tensors: False)
        monkeypatch.setattr(grouped_heads, "in_float32", lambda one, two: one.float() @ two.float())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("shape", SHAPES, ids=["one key head", "static cache", "padded"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_against_the_formula(self, kind: str, shape: dict, dtype: torch.dtype) -> None:
        problem = Problem(kind, queries=1, keys=30, dtype=dtype, **shape)
        with torch.no_grad():
            assert dispatch.route(problem.call()) in ("dense_blocks", "sliding_window")
            mixed = dispatch.attend(problem.call())
        limit = problem.limit if dtype == torch.float32 else 1e-2  # weights and output are rounded
        assert mixed.dtype == dtype
        assert problem.deviation(mixed) <= limit


KIND = flex_cuda.Kind(torch.float32, 16, "cpu", trained=False, merged=False)


class TestFlex:
    """The route of biases: uncompiled, where the arithmetic is the same."""

    @pytest.fixture(autouse=True)
    def uncompiled(self) -> Iterator[None]:
        flex_cuda._checked.cache_clear()
        flex_cuda.FAILED.clear()
        torch.compiler.reset()
        with torch.compiler.set_stance("force_eager"):
            yield
        flex_cuda._checked.cache_clear()
        flex_cuda.FAILED.clear()

    @pytest.mark.parametrize(("dtype", "merged"), [(torch.float32, False), (torch.bfloat16, True)])
    def test_its_check_passes(self, dtype: torch.dtype, merged: bool) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*is not used")
            assert flex_cuda.agrees_with_formula(*KIND._replace(dtype=dtype, merged=merged), False)

    @pytest.mark.parametrize("kind", [KIND, KIND._replace(merged=True)], ids=["one region", "merged"])
    @pytest.mark.parametrize("lost", ["score_mod", "block_mask"])
    def test_a_kernel_that_drops_a_term_fails_its_check(
        self, lost: str, kind: flex_cuda.Kind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = flex.flex.flex_attention
        monkeypatch.setattr(flex, "kernel", lambda family: lambda *a, **k: right(*a, **(k | {lost: None})))
        with pytest.warns(UserWarning, match="not used for biases: it is off by"):
            assert not flex_cuda.agrees_with_formula(*kind, False)
        assert not flex_cuda.agrees_with_formula(*kind, True), "known to fail, it is not traced either"
        assert flex_cuda.agrees_with_formula(*kind._replace(dim=32), True), "control: of another kind nothing is known"

    def test_a_call_whose_kernel_does_not_compile_goes_another_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on an H100, where the example of the check had compiled, and a shorter text did not."""
        problem = Problem("toeplitz", queries=40)
        errors = [BackendCompilerFailed("inductor", RuntimeError("No choices to select."), None)]

        def failing(*args: object, **settings: object) -> None:
            raise errors[0]

        monkeypatch.setattr(flex, "attend", failing)
        with pytest.warns(UserWarning, match="No choices"):
            mixed = flex_cuda.attend(problem.call())
        assert problem.deviation(mixed) <= problem.limit
        assert not flex_cuda.agrees_with_formula(*flex_cuda.kind_of(problem.call()), False), "it is not tried again"
        errors[0] = torch.OutOfMemoryError("another error")
        with pytest.raises(torch.OutOfMemoryError):
            flex_cuda.attend(problem.call())
