"""Remapped distances, pair by pair, against their definitions in whole numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hf_posenc import patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.errors import CannotCombine, SchemeNotDefined
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.mask.sinks import Sinks
from hf_posenc.schemes.remap.dca import DualChunkAttention
from hf_posenc.schemes.remap.lm_infinite import LMInfinite
from hf_posenc.schemes.remap.rerope import LeakyReRoPE, ReRoPE
from hf_posenc.schemes.remap.self_extend import SelfExtend
from hf_posenc.schemes.remap.string import String

from . import models, naive
from .models import TRAINED


def realised(scheme: Scheme, length: int, start: int = 0) -> Tensor:
    """The distance at which each pair j ≤ i is rotated, ``[L, L]``; −1 where it is not seen. No overlaps."""
    positions = torch.arange(start, start + length)
    here, there = positions[:, None], positions[None, :]
    found, claims = torch.full((length, length), -1.0, dtype=torch.float64), torch.zeros(length, length)
    ctx = PositionContext(positions[None], positions[None], causal=True, contiguous=True)
    for region in scheme.regions(ctx):
        mine = region.band.holds(here, there) & (here >= there)
        seen = region.query_at(positions).double()[:, None] - region.key_at(positions).double()[None, :]
        found[mine], claims = seen[mine], claims + mine
    assert claims.max() <= 1
    return found


def dense(length: int, distance_of) -> Tensor:
    rows = [[distance_of(i, j) if j <= i else -1 for j in range(length)] for i in range(length)]
    return torch.tensor(rows, dtype=torch.float64)


def self_extend(trained: int, target: int, **options: object) -> SelfExtend:
    return SelfExtend(models.geometry(trained=trained, target=target), **options)


@pytest.mark.parametrize("window", [None, 1, 5, TRAINED - 1])
def test_rerope(window: int | None) -> None:
    scheme = ReRoPE(models.geometry(target=4 * TRAINED), window=window)
    w = TRAINED // 2 if window is None else window
    assert torch.equal(realised(scheme, 100), dense(100, lambda i, j: min(i - j, w)))
    shorter = dense(100, lambda i, j: min(i - j, w + 1))
    assert not torch.equal(realised(scheme, 100), shorter)  # control


@given(st.integers(2, 40), st.data())
def test_self_extend(trained: int, data: st.DataObject) -> None:
    window = data.draw(st.integers(1, trained - 1))
    group = data.draw(st.integers(1, 8))
    longest = min((trained - window) * group + window, 150)
    scheme = self_extend(trained, max(longest, trained), window=window, group=max(group, 1))
    found = realised(scheme, longest)

    def defined(i: int, j: int) -> int:
        return i - j if i - j < window else i // group - j // group + window - window // group

    assert torch.equal(found, dense(longest, defined))
    assert found.max() <= trained


def test_released_code_shifts_by_a_fraction() -> None:
    scheme = self_extend(32, 80, window=10, group=4, floor="float")
    found = realised(scheme, 80, start=999_920)
    expected = dense(80, lambda i, j: i - j if i - j < 10 else (i + 999_920) // 4 - (j + 999_920) // 4 + 10 - 2.5)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("factor", "group"), [(1, 1), (2, 3), (4, 7), (8, 15)])
def test_default_group_is_the_smallest_feasible(factor: int, group: int) -> None:
    trained, target = 256, 256 * factor
    scheme = self_extend(trained, target)
    assert scheme.window == trained // 2
    assert scheme.group == group
    reach = [(trained - scheme.window) * g + scheme.window for g in (group - 1, group)]
    assert reach[0] < target <= reach[1]


CLASHES = [
    *("dynamic_ntk+self_extend", "rerope+self_extend", "jet_long+rerope", "dynamic_ntk+jet_long", "self_extend+dpe"),
    *("ms_poe+rerope", "dynamic_ntk+ms_poe", "window+sinks", "sinks+lm_infinite"),
]


@pytest.mark.parametrize("clash", CLASHES)
def test_one_rotation_is_remapped_once_and_one_part_chooses_the_keys(clash: str) -> None:
    with pytest.raises(CannotCombine):
        patch_model(models.llama(), clash, factor=2)


def test_remaps_need_a_rotation_and_a_decoder() -> None:
    for lonely in ("self_extend", "none+self_extend"):
        with pytest.raises(SchemeNotDefined, match=r"rope\+self_extend"):
            patch_model(models.gpt2(), lonely)
    with pytest.raises(SchemeNotDefined, match="decoder"):
        patch_model(models.bert(), "rope+self_extend")


@pytest.mark.parametrize(("window", "k"), [(None, 16.0), (5, 2.0), (16, 3.0)])
def test_leaky_rerope(window: int | None, k: float) -> None:
    w = TRAINED // 2 if window is None else window
    found = realised(LeakyReRoPE(models.geometry(target=4 * TRAINED), window=window, k=k), 100, start=10**6)
    expected = dense(100, lambda i, j: i - j if i - j < w else w + (i - j - w) / k)
    assert (found - expected).abs().max() < 1e-9  # thirds of a position at 10⁶ in float64


@pytest.mark.slow
@given(st.integers(4, 60), st.integers(0, 200))
def test_dual_chunk_attention(trained: int, start: int) -> None:
    """The three cases of the paper; exact to the neighbour chunk up to w + 1, never more than c, never 0 for a pair."""
    chunk, local = trained * 3 // 4, max(1, trained // 8)
    scheme = DualChunkAttention(models.geometry(trained=trained, target=8 * trained))
    stride = chunk - local
    found = realised(scheme, 120, start)

    def defined(i: int, j: int) -> int:
        i, j = i + start, j + start
        back = i // stride - j // stride
        at = (i % stride, min(i % stride + stride, chunk), min(2 * stride - 1, chunk))[min(back, 2)]
        return at - j % stride

    assert torch.equal(found, dense(120, defined))
    assert found.max() <= chunk < trained
    distance = (torch.arange(120)[:, None] - torch.arange(120)).double()
    near = (distance >= 0) & (distance <= local + 1)
    assert torch.equal(found[near], distance[near])
    assert bool((found[distance >= 1] >= 1).all())


@pytest.mark.parametrize("options", [{}, {"shift": 14, "local": 5}])
def test_string(options: dict[str, int]) -> None:
    shift, local = options.get("shift", TRAINED // 3), options.get("local", TRAINED // 16)
    scheme = String(models.geometry(), **options)
    found = realised(scheme, 100)
    assert torch.equal(found, dense(100, lambda i, j: i - j if i - j < shift else i - j - shift + local))
    assert realised(scheme, TRAINED + shift - local).max() == TRAINED - 1


@pytest.mark.parametrize("options", [{}, {"n_global": 3, "n_local": 11}, {"n_global": 0}])
def test_lm_infinite(options: dict[str, int]) -> None:
    first, local = options.get("n_global", 10), options.get("n_local", TRAINED)

    def defined(i: int, j: int) -> int:
        return i - j if i - j < local else local if j < first else -1

    assert torch.equal(realised(LMInfinite(models.geometry(), **options), 100), dense(100, defined))


@pytest.mark.parametrize("options", [{}, {"sinks": 2, "recent": 7}, {"sinks": 0, "recent": 9}])
def test_sinks_keep_their_positions_in_the_cache(options: dict[str, int]) -> None:
    """Row by row: put what the cache holds in a list, and count positions in it."""
    sinks = options.get("sinks", 4)
    recent = options.get("recent", TRAINED - 4)

    def defined(i: int, j: int) -> int:
        held = [t for t in range(i + 1) if t < sinks or t > i - recent]
        return held.index(i) - held.index(j) if j in held else -1

    found = realised(Sinks(models.geometry(), **options), 90)
    assert torch.equal(found, dense(90, defined))
    assert found.max() < sinks + recent


@pytest.mark.parametrize(
    "scheme",
    [Sinks(models.geometry(), sinks=3, recent=9), LMInfinite(models.geometry(), n_global=3, n_local=9)],
    ids=lambda scheme: scheme.record.name,
)
def test_evicted_keys_are_those_the_next_token_cannot_see(scheme: Scheme) -> None:
    """The oldest and the newest of the keys before it, counted pair by pair."""
    row = 90
    seen = (realised(scheme, row + 1)[row, :row] >= 0).nonzero()[:, 0].tolist()
    first, last = scheme.kept_keys
    assert seen == [*range(first), *range(row - last, row)]


def test_distance_biases_follow_the_remap() -> None:
    """ALiBi under sinks: the bias counts positions inside the cache, as the rotation would."""
    ids = models.text(4 * TRAINED)
    sinks = Sinks(models.geometry(), sinks=3, recent=9)
    distance = realised(sinks, len(ids))
    text = replace(naive.causal(len(ids)), seen=distance >= 0, bias=-naive.slopes(models.HEADS) * distance)
    for model, formula in ((models.llama, naive.llama), (models.gpt2, naive.gpt2)):
        patched = patch_model(model(), "alibi+sinks", sinks=3, recent=9, factor=4)
        assert (models.logits(patched, ids) - formula(model(), ids, text)).abs().max() < 1e-4


@pytest.mark.parametrize(("name", "options"), [("rerope", {}), ("leaky_rerope", {"k": 3.0}), ("rerope", {"window": 5})])
def test_encoders_clip_on_both_sides(name: str, options: dict[str, float]) -> None:
    """sign(Δ) · g(|Δ|), on a BERT that was given a rotation."""
    ids, w = models.text(4 * TRAINED), options.get("window", TRAINED // 2)
    free = naive.both_ways(len(ids))
    size = free.distance.abs().double()
    beyond = w + (size - w) / options["k"] if "k" in options else torch.full_like(size, w)
    distance = free.distance.sign() * torch.where(size < w, size, beyond)
    expected = naive.bert(models.bert(), ids, replace(free, distance=distance, frequencies=naive.rope(models.HEAD_DIM)))
    patched = patch_model(models.bert(), f"rope+{name}", factor=4, **options)
    assert (models.logits(patched, ids) - expected).abs().max() < 1e-4
    one_sided = replace(free, distance=distance.abs(), frequencies=naive.rope(models.HEAD_DIM))  # control
    assert (naive.bert(models.bert(), ids, one_sided) - expected).abs().max() > 0.1


@pytest.mark.parametrize(("size", "sinks"), [(9, 3), (3, 9)])
@pytest.mark.parametrize("model", ["llama", "gpt2", "bert"])
def test_a_window_may_keep_sinks_visible(model: str, size: int, sinks: int) -> None:
    """Masks only: the first tokens stay at their true distance, in an encoder also ahead of a query."""
    build, formula = models.MODELS[model]
    ids = models.text(4 * TRAINED)
    free = naive.free(model, len(ids))
    near = free.distance.abs() < size
    first = (torch.arange(len(ids)) < sinks)[None, :]
    frequencies = naive.rope(models.HEAD_DIM)
    expected = formula(build(), ids, replace(free, seen=free.seen & (near | first), frequencies=frequencies))
    patched = patch_model(build(), "rope+window", size=size, sinks=sinks, factor=4)
    assert (models.logits(patched, ids) - expected).abs().max() < 1e-4
    alone = formula(build(), ids, replace(free, seen=free.seen & near, frequencies=frequencies))
    assert (alone - expected).abs().max() > 0.1  # control


def test_learned_sinks_enter_the_softmax() -> None:
    """A logit of 50 takes all of it: attention gives nothing, and both blocks pass their input on."""
    ids = models.text(TRAINED)
    patched, silent = patch_model(models.llama(), "sinks", learned_logit=True), models.llama()
    with torch.no_grad():
        for scheme in {id(part): part for part in patched.modules() if isinstance(part, Sinks)}.values():
            scheme.logits.fill_(50.0)
        for layer in silent.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    assert (models.logits(patched, ids) - models.logits(silent, ids)).abs().max() < 1e-4
    assert (models.logits(models.llama(), ids) - models.logits(silent, ids)).abs().max() > 0.1  # control
