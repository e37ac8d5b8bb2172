"""Learned tables and their length; models without positions."""

from __future__ import annotations

import pytest
import torch

from hf_posenc import describe, patch_model, scheme_of
from hf_posenc.errors import OptionOutOfRange, PositionOutOfTable
from hf_posenc.schemes.absolute.learned import Learned

from . import models
from .models import TRAINED, WIDTH


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
