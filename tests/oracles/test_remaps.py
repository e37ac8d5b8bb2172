"""Remapped distances, pair by pair, against their definitions in whole numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hf_posenc import patch_model
from hf_posenc.errors import CannotCombine, OptionOutOfRange, SchemeNotDefined
from hf_posenc.positions import PositionContext
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.rerope import ReRoPE
from hf_posenc.schemes.self_extend import SelfExtend

from . import hosts
from .hosts import TRAINED


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
    return SelfExtend(hosts.geometry(trained=trained, target=target), **options)


@pytest.mark.parametrize("window", [None, 1, 5, TRAINED - 1])
def test_rerope(window: int | None) -> None:
    scheme = ReRoPE(hosts.geometry(target=4 * TRAINED), window=window)
    w = TRAINED // 2 if window is None else window
    assert torch.equal(realised(scheme, 100), dense(100, lambda i, j: min(i - j, w)))
    shorter = dense(100, lambda i, j: min(i - j, w + 1))
    assert not torch.equal(realised(scheme, 100), shorter)  # control


@settings(max_examples=40, deadline=None)
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


@pytest.mark.parametrize(("trained", "window", "group"), [(32, 16, 4), (64, 32, 16), (20, 6, 3), (256, 128, 8)])
def test_self_extend_reaches_just_what_was_trained(trained: int, window: int, group: int) -> None:
    """At (L0 − W) G + W tokens the largest distance is L0 − 1, where G divides W."""
    longest = (trained - window) * group + window
    scheme = self_extend(trained, longest, window=window, group=group)
    assert scheme.group == self_extend(trained, longest, window=window).group
    assert realised(scheme, longest).max() == trained - 1
    assert (
        realised(self_extend(trained, longest, window=window, group=group), longest + group).max() == trained
    )  # control


def test_self_extend_stays_close_to_an_even_squeeze() -> None:
    """|Δ' − (W + (Δ − W) / G)| < 1, and Δ' of one Δ varies by at most 1."""
    window, group = 16, 4
    found = realised(self_extend(32, 80, window=window, group=group), 80)
    for distance in range(window, 80):
        values = found.diagonal(-distance)
        assert (values - (window + (distance - window) / group)).abs().max() < 1
        assert values.max() - values.min() <= 1


def test_released_code_shifts_by_a_fraction() -> None:
    scheme = self_extend(32, 80, window=10, group=4, floor="float")
    found = realised(scheme, 80, start=999_920)
    expected = dense(80, lambda i, j: i - j if i - j < 10 else (i + 999_920) // 4 - (j + 999_920) // 4 + 10 - 2.5)
    assert torch.equal(found, expected)


def test_group_one_is_rope() -> None:
    ids = hosts.text(4 * TRAINED)
    plain = hosts.logits(hosts.llama(), ids)
    one = patch_model(hosts.llama(), "self_extend", window=5, group=1)
    assert (hosts.logits(one, ids) - plain).abs().max() < 1e-4
    two = patch_model(hosts.llama(), "self_extend", window=5, group=2)
    assert (hosts.logits(two, ids) - plain).abs().max() > 0.1  # control


@pytest.mark.parametrize("scheme", ["rerope", "self_extend"])
def test_texts_inside_the_window_are_untouched(scheme: str) -> None:
    ids = hosts.text(4 * TRAINED)
    patched = hosts.logits(patch_model(hosts.llama(), scheme, factor=4), ids)
    plain = hosts.logits(hosts.llama(), ids)
    assert (patched - plain)[: TRAINED // 2].abs().max() < 1e-4
    assert (patched - plain)[TRAINED:].abs().max() > 0.1  # control


@pytest.mark.parametrize(("factor", "group"), [(1, 1), (2, 3), (4, 7), (8, 15)])
def test_default_group_is_the_smallest_that_reaches(factor: int, group: int) -> None:
    trained, target = 256, 256 * factor
    scheme = self_extend(trained, target)
    assert scheme.window == trained // 2
    assert scheme.group == group
    reach = [(trained - scheme.window) * g + scheme.window for g in (group - 1, group)]
    assert reach[0] < target <= reach[1]


def test_infeasible_options_are_refused() -> None:
    with pytest.raises(OptionOutOfRange, match="smaller than the trained length 32, got 32"):
        self_extend(32, 64, window=32)
    with pytest.raises(
        OptionOutOfRange, match=r"reaches 112 tokens, but the target length is 128\. Use a group of at least 7"
    ):
        self_extend(32, 128, window=16, group=6)


def test_what_remaps_cannot_be_combined_with() -> None:
    for clash in ("dynamic_ntk+self_extend", "rerope+self_extend"):
        with pytest.raises(CannotCombine):
            patch_model(hosts.llama(), clash, factor=2)
    for lonely in ("self_extend", "none+self_extend"):
        with pytest.raises(SchemeNotDefined, match=r"rope\+self_extend"):
            patch_model(hosts.gpt2(), lonely)
    with pytest.raises(SchemeNotDefined, match="decoder"):
        patch_model(hosts.bert(), "rope+self_extend")
