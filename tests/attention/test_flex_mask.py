"""Tiles of flex attention's masks against all pairs, one by one."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from hf_posenc.attention.routes import flex_mask
from hf_posenc.core.regions import Band

SIZE = (8, 16)
BANDS = (
    Band(),
    Band(0, None),
    Band(None, 30),
    Band(-5, 30),
    Band(20, 40),
    Band(1, 3, chunk=7),
    Band(rows_from=13, rows_until=44),
    Band(9, None, keys_until=5),
)
POSITIONS = {
    "in steps of one": torch.arange(67)[None],
    "padded on the left": torch.stack((torch.arange(67), (torch.arange(67) - 11).clamp(min=0))),
    "packed": torch.cat((torch.arange(30), torch.arange(37)))[None],
}


def pairs_of(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether some, and whether all pairs of each tile are seen; what is behind the end counts for neither."""
    rows, keys = (-(-n // s) for n, s in zip(mask.shape[-2:], SIZE, strict=True))
    cut = [[mask[:, a * 8 : a * 8 + 8, b * 16 : b * 16 + 16] for b in range(keys)] for a in range(rows)]
    flags = [
        torch.stack([torch.stack([f(t.flatten(1), 1) for t in row], 1) for row in cut], 1)
        for f in (torch.any, torch.all)
    ]
    return flags[0], flags[1]


@pytest.mark.parametrize("positions_kind", POSITIONS)
@pytest.mark.parametrize("band", BANDS, ids=str)
def test_tiles_of_a_band(band: Band, positions_kind: str) -> None:
    """No seen pair is outside, no hidden one inside; in steps of one nothing is visited in vain."""
    positions = POSITIONS[positions_kind]
    found = flex_mask.of_band(band, positions, positions, SIZE)
    some, every = pairs_of(band.holds(positions[:, :, None], positions[:, None, :]))
    assert not (some & ~found.some[:, 0]).any()
    assert not (found.every[:, 0] & ~every).any()
    if positions_kind == "in steps of one" and band.chunk == 1 and band.keys_until is None:
        assert torch.equal(found.some[:, 0], some)
        assert torch.equal(found.every[:, 0], every)


def test_round_trip() -> None:
    """A block mask made here is the one torch makes by asking every pair."""
    band, length = Band(-5, 150), 400
    positions = torch.arange(length)[None]

    def visible(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return band.holds(q, kv)

    ours = flex_mask.block_mask(flex_mask.of_band(band, positions, positions), visible, (length, length))
    theirs = create_block_mask(visible, None, None, length, length, device="cpu")
    assert ours.shape == theirs.shape
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert torch.equal(flex_mask.of_block_mask(ours).every, flex_mask.of_block_mask(theirs).every)
    assert torch.equal(ours.q_num_blocks + ours.full_q_num_blocks, theirs.q_num_blocks + theirs.full_q_num_blocks)
