"""The preallocated KV cache returns what transformers' own returns, and never changes what it returned."""

from __future__ import annotations

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from hf_posenc.cache.preallocated import CAPACITY_STEP, PreallocatedLayer


def states(count: int, seed: int, batch: int = 2) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, count, 4, generator=draw), torch.randn(batch, 3, count, 4, generator=draw)


STEPS = st.one_of(
    st.tuples(st.just("update"), st.integers(1, 2 * CAPACITY_STEP)),
    st.tuples(st.sampled_from(["update", "update", "crop"]), st.integers(1, 3)),
    st.tuples(st.sampled_from(["reorder", "select", "copy", "shallow"]), st.integers(0, 1)),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(STEPS, max_size=12))
@torch.no_grad()
def test_equals_the_dynamic_cache_of_transformers(steps: list[tuple[str, int]]) -> None:
    """Any order of what a generation does to a layer; every tensor ever returned keeps its values."""
    ours, theirs = PreallocatedLayer(), DynamicLayer()
    handed_out: list[tuple[Tensor, Tensor]] = []
    for number, (what, count) in enumerate([("update", 5), *steps]):
        if what == "update":
            new = states(count, number)
            for mine, stock in zip(ours.update(*new), theirs.update(*new), strict=True):
                assert torch.equal(mine, stock)
                handed_out.append((mine, stock))
        elif what == "crop":
            for layer in (ours, theirs):
                layer.crop(-min(count, layer.get_seq_length() - 1))
        elif what == "reorder":
            for layer in (ours, theirs):
                layer.reorder_cache(torch.tensor([count, count]))
        elif what == "select":
            for layer in (ours, theirs):
                layer.batch_select_indices(torch.tensor([1, count]))
        else:
            old = ours
            ours = copy.deepcopy(ours) if what == "copy" else copy.copy(ours)
            branch = old.update(*states(2, 1000 + number))  # the one that was copied goes its own way
            handed_out.append((branch[0], branch[0].clone()))
        assert ours.get_seq_length() == theirs.get_seq_length()
    for mine, stock in handed_out:
        assert torch.equal(mine, stock)


@torch.no_grad()
def test_decoding_copies_rarely() -> None:
    layer = PreallocatedLayer()
    layer.update(*states(10, 0))
    addresses = {layer.update(*states(1, i))[0].data_ptr() for i in range(2 * CAPACITY_STEP)}
    assert len(addresses) == 2
    stock = DynamicLayer()
    stock.update(*states(10, 0))
    held = [stock.update(*states(1, i))[0] for i in range(3)]  # control: a copy a step
    assert len({keys.data_ptr() for keys in held}) == 3


def test_gradients_reach_earlier_keys() -> None:
    layer, (keys, values) = PreallocatedLayer(), states(3, 0)
    keys.requires_grad_()
    layer.update(keys[:, :, :2], values[:, :, :2])
    out, _ = layer.update(keys[:, :, 2:], values[:, :, 2:])
    out.sum().backward()
    assert torch.equal(keys.grad, torch.ones_like(keys))
