"""A decode query with regions under padding: those that read the same keys are one kernel call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Terms

from .formula import mix

KEYS, CHUNK = 40, 5
PADS = (0, 7, 33)
REGIONS = tuple(Region(Band(near, far, chunk=CHUNK)) for near, far in ((None, 1), (1, 2), (2, None)))

pytestmark = pytest.mark.skipif(not flash_cpu.available(), reason="the route needs a private operator of torch")


def padded_call(*, one_copy: bool, pads: tuple[int, ...] = PADS, sink: bool = False) -> tuple[AttentionCall, Any]:
    """A call of samples with that much left padding, and its result by the formula."""
    draw = torch.Generator().manual_seed(len(pads))
    queries = tuple(torch.randn(len(pads), 4, 1, 8, generator=draw) for _ in REGIONS)
    key, values = (torch.randn(len(pads), 2, KEYS, 8, generator=draw) for _ in range(2))
    real = torch.arange(KEYS) >= torch.tensor(pads)[:, None]
    positions = (torch.arange(KEYS) - torch.tensor(pads)[:, None]).clamp(min=0)
    ctx = PositionContext(positions[:, -1:], positions, causal=True, contiguous=False, real_keys=real)
    own_sink = torch.randn(4, generator=draw) if sink else None
    keys = tuple(key if one_copy else key.clone() for _ in REGIONS)
    call = AttentionCall(queries, keys, values, Terms(regions=REGIONS, sink=own_sink), ctx, real[:, None, None], 0.35)
    here, there = positions[:, -1:, None] // CHUNK, positions[:, None, :] // CHUNK
    claims = [c[:, None] for c in (here == there, here == there + 1, here > there + 1)]
    expected = mix(
        [q.double() for q in queries], [key.double()] * 3, values.double(), real[:, None, None], scaling=0.35,
        claims=claims, sink=None if own_sink is None else own_sink.double(),
    )  # fmt: skip
    return call, expected


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize(("one_copy", "pads", "calls"), [(True, PADS, 1), (False, PADS, 3), (True, (0,), 3)])
def test_regions_with_the_same_keys_in_overlapping_columns_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch, *, one_copy: bool, pads: tuple[int, ...], calls: int, sink: bool
) -> None:
    """Where nothing is padded their columns do not overlap, and one call would read keys in vain."""
    call, expected = padded_call(one_copy=one_copy, pads=pads, sink=sink)
    counted, attend = [], flash_cpu.attend
    monkeypatch.setattr(flash_cpu, "attend", lambda *a, **k: counted.append(1) or attend(*a, **k))
    with torch.inference_mode():
        assert dispatch.route(call) == "decode"
        found = dispatch.attend(call)
    assert (found - expected).abs().max() < 2e-6  # float32, weights that sum to 1
    assert len(counted) == calls
