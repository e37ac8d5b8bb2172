"""CUDA routes, with emulated operators on the CPU: which calls they take, and their results.

No kernel is tested here. On a GPU each kind of kernel is compared with the formula before its first use; that this
comparison finds a wrong kernel, and that the call then goes another way, is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_posenc.attention import dispatch, merge
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import by_device, flash_cpu, flash_cuda
from hf_posenc.attention.routes import decode_cuda, dense_blocks, flex, flex_cuda, regions_cpu, regions_cuda
from hf_posenc.core import grouped_heads
from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import EVERYTHING, Band
from hf_posenc.core.terms import KeyBias, Terms, ToeplitzBias

from . import emulated
from .formula import ALL, Problem, positions_of

REGIONS = ("two regions", "chunks", "first keys", "split by row")
KINDS = (*REGIONS, "window")
CALLS = ({"dropout": 0.1}, {"mask_kind": "bool"}, {"queries": 9}, {"causal": False})  # what is no plain square


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors go where CUDA tensors would."""
    monkeypatch.setattr(by_device, "BY_DEVICE", {"cpu": flash_cuda})
    for name, operator in emulated.OPERATORS.items():
        monkeypatch.setattr(flash_cuda, name, operator)
    for module in (merge, regions_cpu):
        for name in ("flash_cpu", "by_device"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, by_device)
    flash_cuda._checked.cache_clear()
    yield
    flash_cuda._checked.cache_clear()


def deviation(problem: Problem) -> float:
    assert regions_cuda.accepts(problem.call())
    return float((regions_cuda.attend(problem.call()).detach().double() - problem.expected()).abs().max())


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_prefill(kind: str, kv_heads: int) -> None:
    problem = Problem(kind, queries=75, kv_heads=kv_heads)
    assert deviation(problem) <= problem.limit


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("length", [1, 3, 7, 8, 33])
@pytest.mark.parametrize("kind", KINDS)
def test_short_texts(kind: str, length: int) -> None:
    problem = Problem(kind, queries=length)
    assert deviation(problem) <= problem.limit


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind: str) -> None:
    """Inputs are what bfloat16 makes of them; the result is rounded to it twice."""
    problem = Problem(kind, queries=75, dtype=torch.bfloat16)
    assert deviation(problem) <= 3e-2


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("keys", [2, 8, 75])
@pytest.mark.parametrize("kind", KINDS)
def test_decoding(kind: str, keys: int) -> None:
    problem = Problem(kind, queries=1, keys=keys)
    assert deviation(problem) <= problem.limit


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind not in (*KINDS, "plain")])
def test_terms_without_a_kernel_take_the_general_route(kind: str) -> None:
    """A bias together with a window has no kernel."""
    assert not regions_cuda.accepts(Problem(kind, queries=75).call())
    assert regions_cuda.accepts(Problem("window", queries=75).call()), "control"


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", CALLS, ids=str)
def test_masked_or_dropped_calls_take_the_general_route(kind: str, changes: dict) -> None:
    call = Problem(kind, **({"queries": 75} | changes), keys=75).call()
    assert not regions_cuda.accepts(call)


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: str, kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "attend", regions_cuda.attend)
    problem = Problem(kind, queries=75, kv_heads=kv_heads, grad=True)
    assert max(problem.gradient_deviations()) <= problem.limit


@pytest.mark.usefixtures("on_cuda")
def test_half_precision_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "attend", regions_cuda.attend)
    problem = Problem("two regions", queries=75, dtype=torch.bfloat16, grad=True)
    assert max(problem.gradient_deviations()) <= 5e-2


def test_bands_cover_every_pair_once_without_a_mask() -> None:
    """Pairs of every part, by a count of their own, are those of the band; none is there twice."""
    length = 41
    empty = (Band(41, 50), Band(7, 7))
    for band in (Band(0, 7), Band(None, 7), Band(5, 9), Band(7, None), Band(-3, 60), Band(40, 41), *empty):
        seen = torch.zeros(length, length, dtype=torch.int)
        found = list(regions_cuda.windowed(0, band, length))
        assert len(found) == (band not in empty), "nothing is called for nothing"
        for part in found:
            rows, keys = torch.arange(length)[part.rows], torch.arange(length)[part.keys]
            inside = torch.ones(len(rows), len(keys), dtype=torch.bool).tril()
            if part.mask is not None:
                inside = inside.triu(1 - part.mask)  # type: ignore[operator]
            seen[part.rows, part.keys] += inside.int()
        distance = torch.arange(length)[:, None] - torch.arange(length)
        assert torch.equal(seen.bool(), band.holds(distance, torch.zeros_like(distance)) & (distance >= 0)), band


@pytest.mark.parametrize(
    ("band", "fits"),
    [
        (Band(0, 7), True),
        (Band(None, 7), True),
        (Band(-3, 7), True),
        (Band(1, 7), False),
        (Band(0, None), False),
        (Band(None, 7, chunk=2), False),
        (Band(None, 7, keys_until=9), False),
    ],
    ids=str,
)
def test_which_windows_the_kernels_have(band: Band, fits: bool) -> None:
    """Theirs end somewhere, hold the row's own key, and are the same for every row."""
    assert regions_cuda.by_window(band) == fits


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_correct_kernel_passes_its_check(dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flash_cuda.sound(dtype, 16, "cpu")


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
        assert not regions_cuda.accepts(Problem("two regions").call())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not regions_cuda.accepts(Problem("two regions").call())
    assert dispatch.route(Problem("two regions").call()) != "regions_cuda"


@pytest.mark.usefixtures("on_cuda")
def test_deviation_of_a_kernel_is_relative(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output of 1.1 times the right one is off by a tenth, whatever its size."""
    right = emulated.efficient_forward
    monkeypatch.setattr(
        flash_cuda, "efficient_forward", lambda *a, **k: BREAKAGES["an output of its own"](*right(*a, **k))
    )
    found = flash_cuda._deviations(torch.float32, 16, "cpu")
    assert found[::5] == pytest.approx([0.1, 0.1, 0.1], abs=1e-3)
    assert max(found[1::5]) < 1e-5, "the log-sum-exp is right"


@pytest.mark.usefixtures("on_cuda")
def test_a_window_that_is_ignored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = emulated.flash_forward

    def without(
        *args: object, window_size_left: object = None, window_size_right: object = None, **kw: object
    ) -> object:
        return right(*args, **kw)

    monkeypatch.setattr(flash_cuda, "flash_forward", without)
    with pytest.warns(UserWarning, match="off by"):
        assert not flash_cuda.sound(torch.bfloat16, 16, "cpu")


@pytest.mark.usefixtures("on_cuda")
def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = emulated.flash_backward
    monkeypatch.setattr(flash_cuda, "flash_backward", lambda *a, **k: tuple(reversed(right(*a, **k))))
    with pytest.warns(UserWarning, match="not used"):
        assert not flash_cuda.sound(torch.bfloat16, 16, "cpu")


@pytest.mark.usefixtures("on_cuda")
def test_missing_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_cuda, "flash_forward", None)
    with pytest.warns(UserWarning, match="not used"):
        assert not flash_cuda.sound(torch.bfloat16, 16, "cpu")


def test_on_this_cpu_the_real_operators_fail_their_check() -> None:
    """Control: torch has them by name, and they have no kernel here."""
    flash_cuda._checked.cache_clear()
    with pytest.warns(UserWarning, match="is not used"):
        assert not flash_cuda.sound(torch.bfloat16, 16, "cpu")
    flash_cuda._checked.cache_clear()


@pytest.mark.usefixtures("on_cuda")
def test_private_operators_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_POSENC_NO_PRIVATE_OPS", "1")
    assert not regions_cuda.accepts(Problem("two regions").call())


@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_shapes_as_torch_registers_them(dtype: torch.dtype, window: int | None) -> None:
    """Torch's own shape functions take the arguments; that of the efficient kernel's backward pass is wrong in 2.13."""
    q = torch.empty(2, 4, 150, 64, device="meta", dtype=dtype)
    k = torch.empty(2, 2, 150, 64, device="meta", dtype=dtype)
    out, lse = flash_cuda.attend(q, k, k, causal=True, scale=0.1, window=window)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == (q.shape, dtype, q.shape[:3], torch.float32)
    if dtype == torch.bfloat16:
        grads = flash_cuda.gradient(out, q, k, k, out, lse, causal=True, scale=0.1, window=window)
        assert [g.shape for g in grads] == [q.shape, k.shape, k.shape]


@pytest.mark.usefixtures("on_cuda")
def test_compiled_without_a_break() -> None:
    """The self-check is a constant to the compiler."""
    problem = Problem("two regions", queries=40)
    near, far = problem.call().terms.regions

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions = torch.arange(q.shape[2])[None]
        terms = Terms(regions=(near, far), visible=EVERYTHING, logit_scale=1.1)
        call = AttentionCall((q, q), (k, k), v, terms, PositionContext(positions, positions, True, True), None, 0.3)
        assert regions_cuda.accepts(call)
        return regions_cuda.attend(call)

    q, k, v = problem.q[0], problem.k[0], problem.v
    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k, v), attend(q, k, v), atol=1e-6, rtol=0)
    q, k, v = (x.detach().bfloat16().requires_grad_() for x in (q, k, v))
    one, two = (torch.autograd.grad(way(q, k, v).sum(), (q, k, v)) for way in (compiled, attend))
    torch.testing.assert_close(one, two, atol=1e-6, rtol=0)


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
            assert dispatch.route(problem.call()) == "decode_cuda"
            mixed = dispatch.attend(problem.call())
        limit = problem.limit if dtype == torch.float32 else 1e-2  # weights and output are rounded
        assert mixed.dtype == dtype
        assert float((mixed.double() - problem.expected()).abs().max()) <= limit

    def test_keys_in_half_precision_are_not_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[torch.dtype, int]] = []

        def product(one: Tensor, two: Tensor) -> Tensor:
            seen.append((two.dtype, two.data_ptr()))
            return one.float() @ two.float()

        monkeypatch.setattr(grouped_heads, "in_float32", product)
        call = Problem("key bias", queries=1, keys=30, dtype=torch.bfloat16).call()
        with torch.no_grad():
            dispatch.attend(call)
        assert seen == [(torch.bfloat16, call.keys[0].data_ptr())]

    def test_which_calls_it_leaves(self) -> None:
        one = Problem("key bias", queries=1, keys=30).call()
        with torch.no_grad():
            assert decode_cuda.accepts(one)
            for other in (
                Problem("content", queries=1, keys=30).call(), Problem("values", queries=1, keys=30).call(),
                Problem("rows", queries=1, keys=30).call(), Problem("key bias", queries=2, keys=30).call(),
                replace(one, dropout=0.1),
            ):  # fmt: skip
                assert not decode_cuda.accepts(other)
        assert not decode_cuda.accepts(one), "with gradients"


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

    @pytest.mark.parametrize("merged", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_its_check_passes(self, dtype: torch.dtype, merged: bool) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*is not used")
            assert flex_cuda.sound(*KIND._replace(dtype=dtype, merged=merged), False)

    @pytest.mark.parametrize("kind", [KIND, KIND._replace(merged=True)], ids=["one region", "merged"])
    @pytest.mark.parametrize("lost", ["score_mod", "block_mask"])
    def test_a_kernel_that_drops_a_term_fails_its_check(
        self, lost: str, kind: flex_cuda.Kind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = flex.flex.flex_attention
        monkeypatch.setattr(flex, "kernel", lambda family: lambda *a, **k: right(*a, **(k | {lost: None})))
        with pytest.warns(UserWarning, match="not used for biases: it is off by"):
            assert not flex_cuda.sound(*kind, False)
        assert not flex_cuda.sound(*kind, True), "known to fail, it is not traced either"
        assert flex_cuda.sound(*kind._replace(dim=32), True), "control: of another kind nothing is known"

    def test_a_failing_kernel_warns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(*args: object, **settings: object) -> None:
            raise RuntimeError("no triton here\nand a long story")

        monkeypatch.setattr(flex, "kernel", lambda family: failing)
        with pytest.warns(UserWarning, match="flash_attention|no triton here|failed"):
            assert not flex_cuda.sound(*KIND, False)

    def test_a_call_whose_kernel_does_not_compile_goes_another_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on an H100, where the example of the check had compiled, and a shorter text did not."""
        problem = Problem("toeplitz", queries=40)
        errors = [BackendCompilerFailed("inductor", RuntimeError("No choices to select."), None)]

        def failing(*args: object, **settings: object) -> None:
            raise errors[0]

        monkeypatch.setattr(flex, "attend", failing)
        with pytest.warns(UserWarning, match="No choices"):
            mixed = flex_cuda.attend(problem.call())
        assert float((mixed.double() - problem.expected()).abs().max()) <= problem.limit
        assert not flex_cuda.sound(*flex_cuda.kind_of(problem.call()), False), "it is not tried again"
        errors[0] = torch.OutOfMemoryError("another error")
        with pytest.raises(torch.OutOfMemoryError):
            flex_cuda.attend(problem.call())

    def test_deviation_is_relative(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = flex.flex.flex_attention

        def louder(*args: object, **settings: object) -> tuple[Tensor, object]:
            out, log_sum_exp = right(*args, **settings)
            return out * 1.1, log_sum_exp

        monkeypatch.setattr(flex, "kernel", lambda family: louder)
        assert flex_cuda.deviation(KIND._replace(merged=True)) == pytest.approx(0.1, abs=1e-3)

    @pytest.mark.parametrize(
        ("changes", "accepted"),
        [
            ({}, True),
            ({"mask": (2, 1, 40, 40)}, True),
            ({"mask": (2, 4, 40, 40)}, False),
            ({"mask": (2, 2, 40, 40)}, False),
            ({"mask": (2, 1, 40, 40), "of": torch.float32}, False),
            ({"dropout": 0.1}, False),
        ],
        ids=str,
    )
    def test_which_calls_it_takes_on_cuda(self, changes: dict, accepted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tensors without storage stand for those of a device; a mask must be one of yes and no, and of all heads."""
        asked = []
        monkeypatch.setattr(flex_cuda, "sound", lambda *kind: asked.append(kind) or True)
        monkeypatch.setattr(flex_cuda, "FEW", 2 * 4 * 40 * 40 - 1)
        with FakeTensorMode():
            q, k, v = (torch.empty(2, heads, 40, 8, device="cuda") for heads in (4, 2, 2))
            positions = torch.empty(1, 40, dtype=torch.long, device="cuda")
            shape = changes.get("mask")
            mask = None if shape is None else torch.empty(shape, dtype=changes.get("of", torch.bool), device="cuda")
            terms = Terms(bias=(ToeplitzBias(lambda distance: distance[None] * 0.1),))
            ctx = PositionContext(positions, positions, causal=True, contiguous=True)
            call = AttentionCall((q,), (k,), v, terms, ctx, mask, 0.3, changes.get("dropout", 0.0))
            assert flex_cuda.accepts(call) == accepted
            kind = flex_cuda.Kind(torch.float32, 8, "cuda:0", trained=True, merged=False)
            assert asked == [(*kind, False)] * accepted
            everything = replace(call, mask=None, dropout=0.0)
            assert not flex_cuda.accepts(replace(everything, values=torch.empty(2, 2, 40, 8))), "control: on the CPU"
            monkeypatch.setattr(flex_cuda, "FEW", 2 * 4 * 40 * 40)
            assert not flex_cuda.accepts(everything), "a block is sooner there"

    @pytest.mark.parametrize("queries", [1, 30])
    @pytest.mark.parametrize("kind", ["key bias", "toeplitz", "regions with a bias"])
    def test_in_a_compiled_model(self, kind: str, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """One graph, behind a static cache, too."""
        monkeypatch.setattr(by_device, "BY_DEVICE", {"cpu": flash_cuda})
        monkeypatch.setattr(flash_cuda, "usable", lambda *tensors: False)
        problem = Problem(kind, queries=queries, keys=30, unwritten=3 * (queries == 1), mask_kind="bool")
        call, routes = problem.call(), []

        def attend(q: tuple[Tensor, ...], k: tuple[Tensor, ...], v: Tensor) -> Tensor:
            traced = replace(call, queries=q, keys=k, values=v)
            routes.append(dispatch.route(traced))
            return dispatch.attend(traced)

        with torch.compiler.set_stance("default"), torch.no_grad():
            mixed = torch.compile(attend, fullgraph=True, backend="eager")(call.queries, call.keys, call.values)
        assert routes == ["decode_cuda" if queries == 1 else "flex_cuda"]
        assert float((mixed.double() - problem.expected()).abs().max()) <= problem.limit

    @pytest.mark.parametrize("kind", ["key bias", "toeplitz", "window", "regions with a bias", "scaled rows"])
    def test_mask_of_every_pair(self, kind: str) -> None:
        real = torch.tensor([[0] * 31 + [1] * 239, [1] * 270])
        problem = Problem(kind, queries=270, real=real, mask_kind="bool")
        mixed = flex_cuda.attend(problem.call())
        off = (mixed.double() - problem.expected()).abs().masked_fill(~real.bool()[:, None, :, None], 0.0)
        assert float(off.max()) <= problem.limit

    def test_broadcast_mask(self) -> None:
        real = torch.tensor([[1] * 140 + [0] * 20, [1] * 160])
        problem = Problem("toeplitz", queries=160, causal=False, real=real)
        call = replace(problem.call(), mask=real.bool()[:, None, None, :])
        assert float((flex_cuda.attend(call).double() - problem.expected()).abs().max()) <= problem.limit

    @pytest.mark.parametrize("kind", ["key bias", "toeplitz"])
    def test_positions_in_any_order(self, kind: str) -> None:
        """A key may stand behind its query: a bias of keys goes on with its sign there, as on every route."""
        call = Problem(kind, queries=40, heads=4, kv_heads=4).call()
        order = torch.randperm(40, generator=torch.Generator().manual_seed(0))[None]
        ctx = replace(call.ctx, query_positions=order, key_positions=order, contiguous=False)
        terms = positions_of(4, 8)[kind].terms(ctx, None)
        call = replace(call, ctx=ctx, terms=terms)
        torch.testing.assert_close(flex.attend(call, None), dense_blocks.attend(call), atol=1e-5, rtol=0)

    def test_near_keys_keep_precision_at_large_positions(self) -> None:
        """Control: in float32 counted from the end, the bias alone would be off by 2e-3."""
        start, length = 60_000, 300
        problem = Problem("key bias", queries=length)
        far = problem.call()
        ctx = replace(
            far.ctx, query_positions=far.ctx.query_positions + start, key_positions=far.ctx.key_positions + start
        )
        bias = far.terms.bias[0]
        values = bias.values.double() / 7  # type: ignore[union-attr]
        slopes = bias.slopes / 7  # type: ignore[operator, union-attr]
        plain = flex.attend(replace(far, terms=replace(far.terms, bias=(KeyBias(values),))), None)
        for moved in (KeyBias(values + start * 1.0007), KeyBias(values + start * 1.0007, slopes)):
            found = flex.attend(replace(far, ctx=ctx, terms=replace(far.terms, bias=(moved,))), None)
            torch.testing.assert_close(found, plain, atol=1e-6, rtol=0)


def test_one_family_compiles_once() -> None:
    """Lengths, layers and steps share a kernel; the second length is compiled for all that follow."""
    graphs = []

    def counted(graph: torch.fx.GraphModule, example: object) -> object:
        graphs.append(graph)
        return graph.forward

    compile_ = torch.compile
    torch.compiler.reset()
    flex._compiled.cache_clear()
    try:
        torch.compile = lambda function: compile_(function, backend=counted)  # type: ignore[assignment]
        for length in (300, 400, 413, 555, 389, 640):
            flex.attend(Problem("toeplitz", queries=length, batch=1).call(), None)
        assert len(graphs) <= 2
        for keys in range(290, 300):
            flex.attend(Problem("toeplitz", queries=1, keys=keys, batch=1).call(), None)
        assert len(graphs) <= 4
        for heads in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10):  # more than torch keeps graphs of one function
            flex.attend(Problem("toeplitz", queries=30, heads=heads, kv_heads=1, batch=1).call(), None)
        assert len(graphs) <= 14
    finally:
        torch.compile = compile_  # type: ignore[assignment]
        flex._compiled.cache_clear()
        torch.compiler.reset()
