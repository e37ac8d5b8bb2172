"""Flex attention, uncompiled on the CPU, and the tiles it visits, against the formula, sdpa and all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from hf_posenc import patch_model
from hf_posenc.attention.routes import flex, flex_mask
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.core.regions import Band
from hf_posenc.errors import BackendCannotCarry

from .formula import ALL, BOTH_WAYS, DOCUMENTS, LEFT, Problem

SUPPORTED = tuple(kind for kind in ALL if kind not in ("rows", "content", "values"))


@pytest.fixture(autouse=True)
def uncompiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same arithmetic without minutes of C++ compilation, except where that is the point."""
    stance = "default" if request.node.get_closest_marker("full") else "force_eager"
    torch.compiler.reset()  # after a second shape it compiles for any length, and that C++ does not build on torch 2.13
    with torch.compiler.set_stance(stance):
        yield


def block_mask(problem: Problem) -> BlockMask:
    """The attention mask, as transformers gives it to flex attention."""
    seen = problem.seen().expand(problem.batch, 1, -1, -1)

    def visible(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return seen[b, 0, q, kv]

    return create_block_mask(visible, problem.batch, None, problem.queries, problem.keys, device="cpu")


CASES: dict[str, dict[str, Any]] = {
    "one key head": {"queries": 150, "kv_heads": 1},
    "a new token": {"queries": 1, "keys": 40},
    "a chunk in a static cache": {"queries": 7, "keys": 40, "unwritten": 9},
    "padded left": {"queries": 40, "real": LEFT},
    "packed": {"queries": 40, "document": DOCUMENTS},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", SUPPORTED)
def test_causal(kind: str, case: str) -> None:
    problem = Problem(kind, **CASES[case])
    assert problem.deviation(flex.attend(problem.call(), block_mask(problem))) <= problem.limit


@pytest.mark.parametrize("kind", [kind for kind in SUPPORTED if kind in BOTH_WAYS])
def test_bidirectional(kind: str) -> None:
    problem = Problem(kind, queries=150, causal=False)
    assert problem.deviation(flex.attend(problem.call(), block_mask(problem))) <= problem.limit


@pytest.mark.parametrize(("queries", "keys"), [(129, 129), (300, 300), (7, 300), (1, 257)])
@pytest.mark.parametrize("kind", ["plain", "window", "two regions", "chunks"])
def test_visited_tiles_hold_every_visible_pair(kind: str, queries: int, keys: int) -> None:
    """Uncompiled, flex attention asks all pairs: a tile left out shows only here. Nothing is taken unasked either."""
    call = Problem(kind, queries=queries, keys=keys).call()
    i, j = call.ctx.query_positions[0, :, None], call.ctx.key_positions[0]
    for region in call.terms.regions:
        found = flex_mask.block_mask_tiles(flex_mask.mask_of(call, None, region.band))
        whole = torch.zeros(-(-queries // 128) * 128, -(-keys // 128) * 128, dtype=torch.bool)
        whole[:queries, :keys] = region.band.holds(i, j) & call.terms.visible.holds(i, j) & (j <= i)
        by_tile = whole.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
        assert not (by_tile.any(3).any(1) & ~found.some[0, 0]).any()
        assert not (found.every[0, 0] & ~by_tile.all(3).all(1)).any()


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem("content"), "a bias that needs queries and keys"),
        (Problem("rows"), "a rotation that differs by row"),
        (Problem("values"), "a positional term of the values"),
        (Problem("toeplitz", dropout=0.1), "dropout"),
        (Problem("toeplitz", grad=True), "gradients on the CPU"),
        (Problem("learned table", grad=True), "gradients on the CPU"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_unsupported_terms_are_refused(problem: Problem, reason: str) -> None:
    with pytest.raises(BackendCannotCarry, match=reason):
        flex.attend(problem.call(), None)


@pytest.mark.parametrize("scheme", ["alibi", "rerope", "yarn"])
@pytest.mark.parametrize("padded", [False, True])
def test_llama_as_on_sdpa(scheme: str, padded: bool) -> None:
    model = patch_model(tiny_model("llama"), scheme, factor=4)
    ids, mask = torch.randint(64, (2, 40)), LEFT if padded else None

    def logits(backend: str) -> torch.Tensor:
        model.set_attn_implementation(backend)
        with torch.no_grad():
            first = model(ids[:, :-1], attention_mask=None if mask is None else mask[:, :-1], use_cache=True)
            last = model(ids[:, -1:], attention_mask=mask, past_key_values=first.past_key_values)
        both = torch.cat((first.logits, last.logits), dim=1)
        return both if mask is None else both.masked_fill(~mask.bool()[..., None], 0.0)

    torch.testing.assert_close(logits("flex_attention"), logits("sdpa"), atol=2e-5, rtol=0)


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
    found = flex_mask.band_tiles(band, positions, positions, SIZE)
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

    ours = flex_mask.block_mask(flex_mask.band_tiles(band, positions, positions), visible, (length, length))
    theirs = create_block_mask(visible, None, None, length, length, device="cpu")
    assert ours.shape == theirs.shape
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert torch.equal(flex_mask.block_mask_tiles(ours).every, flex_mask.block_mask_tiles(theirs).every)
    assert torch.equal(ours.q_num_blocks + ours.full_q_num_blocks, theirs.q_num_blocks + theirs.full_q_num_blocks)
