"""Cached cosines and sines: equal numbers, computed once, of bounded size, not copied with the model."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model
from hf_posenc.core.rotation import AHEAD, MOST, CosSinCache, Table

from ..small_models import llama


class Counted:
    """A table of squares that counts how often it is made."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def __call__(self, positions: Tensor) -> Table:
        self.made.append((int(positions[0, 0]), int(positions[0, -1]) + 1))
        rows = positions[:, None, :, None].double() ** 2
        return rows, -rows


CPU = torch.device("cpu")


def test_decoding_makes_a_table_in_hundreds_of_steps() -> None:
    tables, make = CosSinCache(), Counted()
    for step in range(5, 5 + 2 * AHEAD):
        square, minus = tables.rows("use", step, 1, CPU, make)
        assert square.flatten().tolist() == [step**2]
        assert minus.flatten().tolist() == [-(step**2)]
    assert len(make.made) == 2


def test_tables_are_kept_by_use_and_first_position() -> None:
    tables, make = CosSinCache(), Counted()
    assert tables.rows("one", 0, 4, CPU, make)[0].flatten().tolist() == [0, 1, 4, 9]
    assert tables.rows("one", 1, 2, CPU, make)[0].flatten().tolist() == [1, 4]
    assert tables.rows("one", 7, 1, CPU, make)[0].flatten().tolist() == [49]
    assert tables.rows("two", 3, 1, CPU, lambda p: (-p[:, None, :, None],) * 2)[0].flatten().tolist() == [-3]


def test_uses_that_never_come_back_are_not_kept_for_ever() -> None:
    tables, make = CosSinCache(), Counted()
    for use in range(3 * MOST):
        tables.rows(use, 0, 4, CPU, make)
    assert len(make.made) == 3 * MOST
    assert len(tables.spans) <= MOST


def test_a_table_made_in_inference_mode_can_be_trained_with() -> None:
    tables = CosSinCache()
    with torch.inference_mode():
        tables.rows("use", 0, 3, CPU, Counted())
    made, _ = tables.rows("use", 0, 3, CPU, Counted())
    x = torch.ones(3, requires_grad=True)
    (x * made.flatten()).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 4]


@pytest.mark.parametrize("scheme", ["rope", "yarn", "self_extend", "jet_long", "xpos", "longrope"])
def test_a_second_pass_gives_the_same(scheme: str) -> None:
    """Other lengths and places in between do not confuse what is kept."""
    model = patch_model(llama(max_position_embeddings=32), scheme, factor=4)
    ids = torch.arange(96)[None] % 64
    with torch.no_grad():
        first = model(ids).logits
        shifted = model(ids[:, :40], position_ids=torch.arange(40)[None] + 50).logits
        model.generate(ids[:, :50], max_new_tokens=4, do_sample=False, pad_token_id=0)
        assert torch.equal(model(ids).logits, first)
        assert torch.equal(model(ids[:, :40], position_ids=torch.arange(40)[None] + 50).logits, shifted)
        apart = copy.deepcopy(model)
        assert "kept_answers" not in apart.model.layers[0].self_attn.scheme.__dict__
        assert torch.equal(apart(ids).logits, first)
    scheme_of_first = model.model.layers[0].self_attn.scheme
    assert b"kept_answers" not in pickle.dumps(scheme_of_first)
