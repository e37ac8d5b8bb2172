"""Tables: learned ones and their length, decomposed, interpolated as in torch, or tiled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import describe, patch_model, scheme_of
from hf_posenc.errors import CannotCombine, OptionOutOfRange, PositionOutOfTable, SchemeNotDefined
from hf_posenc.schemes.absolute.learned import Learned
from hf_posenc.schemes.absolute.learned_hier import LearnedHier
from hf_posenc.schemes.absolute.learned_interp import LearnedInterp
from hf_posenc.schemes.base import Scheme

from . import models
from .models import TRAINED, WIDTH


def drawn(rows: int, width: int = 8) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def two_digits(table: Tensor, alpha: float) -> Tensor:
    """kexue.fm/archives/7947, as written: α u_a + (1 − α) u_b for every a, b."""
    u = (table - alpha * table[0]) / (1 - alpha)
    return (alpha * u[:, None] + (1 - alpha) * u[None, :]).flatten(0, 1)


def stretched(table: Tensor, length: int) -> Tensor:
    """Linear interpolation with the ends kept, by torch."""
    return nn.functional.interpolate(table.T[None], size=length, mode="linear", align_corners=True)[0].T


def read(scheme: Scheme, table: Tensor, length: int) -> Tensor:
    return scheme.read_table(table, torch.arange(length))


@pytest.mark.parametrize("rows", [2, 7, 32])
@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.75])
def test_hierarchy_as_defined(rows: int, alpha: float) -> None:
    scheme = LearnedHier(models.geometry(trained=rows, table=rows, base=None), alpha=alpha)
    table = drawn(rows)
    codes = read(scheme, table, rows**2)
    assert (codes - two_digits(table, alpha)).abs().max() < 1e-12
    assert torch.equal(codes[:rows], table)
    assert torch.pdist(codes).min() > 1e-3  # (a, b) differs from (b, a), and every position from every other


def test_a_share_of_one_half_is_ambiguous() -> None:
    mixed = two_digits(drawn(7), 0.5)  # why it is refused
    assert (mixed[1 * 7 + 2] - mixed[2 * 7 + 1]).abs().max() < 1e-12
    with pytest.raises(OptionOutOfRange, match=r"alpha must not be 0\.5"):
        LearnedHier(models.geometry(table=32), alpha=0.5)
    with pytest.raises(OptionOutOfRange, match="'alpha'"):
        patch_model(models.gpt2(), "learned_hier", alpha=1.0)


@pytest.mark.parametrize("length", [32, 33, 64, 100, 128])
def test_interpolation_equals_torch(length: int) -> None:
    scheme = LearnedInterp(models.geometry(target=length, table=TRAINED, base=None))
    table = drawn(TRAINED)
    codes = read(scheme, table, length)
    assert (codes - stretched(table, length)).abs().max() < 1e-6
    assert torch.equal(codes[[0, -1]], table[[0, -1]])
    by_factor = stretched(table, TRAINED)[torch.arange(length) * TRAINED // length]  # control: another way to stretch
    assert length == TRAINED or (codes - by_factor).abs().max() > 0.1


def test_interpolated_rows_are_exact_at_large_positions() -> None:
    """In whole numbers: float32 indices would read between rows at a million tokens."""
    length = 31 * 40_000 + 1
    scheme = LearnedInterp(models.geometry(target=length, table=TRAINED, base=None))
    assert torch.equal(scheme.read_table(drawn(TRAINED), torch.arange(TRAINED) * 40_000), drawn(TRAINED))


def test_tiles_repeat_the_table() -> None:
    scheme, table = LearnedInterp(models.geometry(table=TRAINED, base=None), mode="tile"), drawn(TRAINED)
    assert torch.equal(read(scheme, table, 3 * TRAINED), table.repeat(3, 1))
    assert scheme.longest is None


def test_nearest_takes_the_nearest_and_refuses_ties() -> None:
    scheme = LearnedInterp(models.geometry(target=100, table=TRAINED, base=None), mode="nearest")
    positions = torch.linspace(0, TRAINED - 1, 100, dtype=torch.float64)
    nearest = (positions[:, None] - torch.arange(TRAINED)).abs().argmin(-1)
    assert torch.equal(read(scheme, drawn(TRAINED), 100), drawn(TRAINED)[nearest])
    with pytest.raises(OptionOutOfRange, match="halfway between two of 32 rows"):  # 63 positions, every second between
        LearnedInterp(models.geometry(target=63, table=TRAINED, base=None), mode="nearest")


def test_only_trained_rows_count() -> None:
    """Of a table with room to spare, the rows that training saw are stretched."""
    scheme = LearnedHier(models.geometry(trained=16, table=TRAINED, base=None))
    assert (scheme.rows, scheme.longest) == (16, 256)
    ends = LearnedInterp(models.geometry(trained=16, target=64, table=TRAINED, base=None))
    assert torch.equal(read(ends, drawn(TRAINED), 64)[-1], drawn(TRAINED)[15])


def test_ends_and_refusals() -> None:
    with pytest.raises(PositionOutOfTable, match="Position 128 is past the 128 positions of scheme 'learned_interp'"):
        models.logits(patch_model(models.gpt2(), "learned_interp", factor=4), models.text(129))
    assert models.logits(patch_model(models.gpt2(), "learned_interp", mode="tile"), models.text(129)).isfinite().all()
    with pytest.raises(OptionOutOfRange, match="ends after 1024 positions"):
        patch_model(models.gpt2(), "learned_hier", target_length=1025)
    long = patch_model(models.bert(), "learned_hier", target_length=1024)
    assert models.logits(long, models.text(1024)).isfinite().all()
    with pytest.raises(PositionOutOfTable, match="Position 1024 is past the 1024 positions of scheme 'learned_hier'"):
        models.logits(long, models.text(1025))
    for name in ("learned_hier", "learned_interp"):
        with pytest.raises(SchemeNotDefined, match="this model has none"):
            patch_model(models.llama(), name)
    with pytest.raises(CannotCombine, match="both add a code"):  # a code stands in the table's place
        patch_model(models.gpt2(), "binary+learned_hier", factor=4)


def test_llama_gets_a_table_as_long_as_the_target() -> None:
    patched = patch_model(models.llama(), "learned", factor=4)
    table = scheme_of(patched).table.weight
    assert table.shape == (4 * TRAINED, WIDTH)
    assert table.std().item() == pytest.approx(0.02, rel=0.05)
    assert describe(patched).parameters_added == table.numel()
    models.logits(patched, models.text(4 * TRAINED))
    with pytest.raises(PositionOutOfTable, match=f"Position {4 * TRAINED} is past the {4 * TRAINED} positions"):
        models.logits(patched, models.text(4 * TRAINED + 1))


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_a_kept_table_keeps_its_length(model: str) -> None:
    build, _ = models.MODELS[model]
    with pytest.raises(PositionOutOfTable, match=f"past the {TRAINED} positions"):
        models.logits(patch_model(build(), "learned"), models.text(5000))
    with pytest.raises(OptionOutOfRange, match=f"ends after {TRAINED} positions"):
        patch_model(build(), "learned", factor=2)
    assert scheme_of(patch_model(build(), "learned")).keeps_table
    longer = patch_model(build(), "learned", factor=2, num_positions=2 * TRAINED)
    assert models.logits(longer, models.text(2 * TRAINED)).isfinite().all()


def test_a_table_is_looked_up_by_position() -> None:
    """Rows by place, of any batch, and gradients to the rows that were read and no others."""
    scheme = Learned(models.geometry(width=8, target=10))
    scheme.reset_parameters()
    positions = torch.tensor([[0, 1, 9], [3, 3, 0]])
    code = scheme.embed(positions)
    assert code.shape == (2, 3, 8)
    for row, column in [(0, 0), (0, 2), (1, 1)]:
        assert torch.equal(code[row, column], scheme.table.weight[positions[row, column]])
    code.sum().backward()
    assert scheme.table.weight.grad[:, 0].tolist() == [2, 1, 0, 2, 0, 0, 0, 0, 0, 1]


def test_a_learned_table_disables_the_original_table() -> None:
    patched = patch_model(models.gpt2(), "learned", num_positions=TRAINED)
    assert not patched.transformer.wpe.weight.requires_grad
    before = models.logits(patched, models.text(9))
    torch.nn.init.zeros_(patched.transformer.wpe.weight)
    assert torch.equal(models.logits(patched, models.text(9)), before)
