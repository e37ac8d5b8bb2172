"""Jet-Long against its definition in whole numbers, by rows and by calls, with a cache and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import StaticCache

from hf_posenc import from_pretrained, patch_model
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.remap.jet_long import JetLong

from . import models, naive
from .models import TRAINED
from .test_remaps import dense, realised

LONG = 4 * TRAINED


def defined(length: int, window: int, trained: int = TRAINED, final: int | None = None) -> Tensor:
    """The paper's distances: by the length at each row, or by the final one for all rows."""

    def of(i: int, j: int) -> int:
        group = max(1, -(-(final or i + 1) // trained))
        return i - j if i - j <= window else i // group - j // group

    return dense(length, of)


@given(st.integers(2, 30), st.integers(1, 6), st.data())
def test_distances_by_row(trained: int, factor: int, data: st.DataObject) -> None:
    window = data.draw(st.integers(1, trained - 1))
    scheme = JetLong(models.geometry(trained=trained, target=trained * factor), window=window)
    found = realised(scheme, trained * factor)
    assert torch.equal(found, defined(trained * factor, window, trained))
    assert found.max() < trained


@pytest.mark.parametrize("length", [1, TRAINED, TRAINED + 1, LONG])
def test_distances_by_call(length: int) -> None:
    scheme = JetLong(models.geometry(target=LONG), length="sequence")
    expected = defined(length, TRAINED // 16, final=length)
    assert torch.equal(realised(scheme, length), expected)
    if length == LONG:  # control
        assert not torch.equal(expected, defined(length, TRAINED // 16))


def test_beyond_the_target_length_groups_stay_as_they_are() -> None:
    found = realised(JetLong(models.geometry(target=2 * TRAINED)), 3 * TRAINED)
    expected = defined(3 * TRAINED, TRAINED // 16, final=2 * TRAINED)
    assert torch.equal(found[TRAINED:], expected[TRAINED:])


@pytest.mark.parametrize("length", ["row", "sequence"])
@pytest.mark.parametrize(("model", "scheme"), [("llama", "jet_long"), ("gpt2", "rope+jet_long")])
def test_whole_models_equal_the_definition(model: str, scheme: str, length: str) -> None:
    build, formula = models.MODELS[model]
    ids = models.text(LONG)
    distance = defined(LONG, 5, final=LONG if length == "sequence" else None)
    text = replace(naive.causal(LONG), distance=distance, frequencies=naive.rope(models.HEAD_DIM))
    patched = patch_model(build(), scheme, factor=4, window=5, length=length)
    assert (models.logits(patched, ids) - formula(build(), ids, text)).abs().max() < 1e-4
    offset = replace(text, distance=distance + (distance != naive.distances(LONG)) * 3)  # control: as in Self-Extend
    assert (models.logits(patched, ids) - formula(build(), ids, offset)).abs().max() > 0.1


def test_by_call_each_token_is_decoded_at_the_length_so_far() -> None:
    """One layer, whose keys know nothing of groups: each decoded row is the definition's of its own length."""
    ids = models.text(LONG)
    patched = patch_model(models.llama(num_hidden_layers=1), "jet_long", factor=4, length="sequence")
    text = replace(naive.causal(LONG), distance=defined(LONG, TRAINED // 16), frequencies=naive.rope(models.HEAD_DIM))
    expected = naive.llama(models.llama(num_hidden_layers=1), ids, text)
    found = models.in_pieces(patched, ids[None], TRAINED - 2)[0]
    assert (found - expected).abs().max() < 1e-4
    whole = models.logits(patched, ids)  # control: a prefill groups all rows as the last one
    assert (whole[TRAINED:-TRAINED] - expected[TRAINED:-TRAINED]).abs().max() > 0.1


@pytest.mark.slow
def test_by_call_one_graph_serves_all_lengths() -> None:
    """Texts within the trained length, whose groups are of one token, and beyond; and decoding from a static cache."""
    patched, graphs = patch_model(models.llama(), "jet_long", factor=4, window=5, length="sequence"), []

    def counted(graph: torch.fx.GraphModule, example: object) -> Callable:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(patched, backend=counted, fullgraph=True, dynamic=True)
    for length in (LONG, LONG - 3, TRAINED, TRAINED + 1):
        ids = models.text(length)
        assert (models.logits(compiled, ids) - models.logits(patched, ids)).abs().max() < 1e-4
    assert len(graphs) == 1
    ids = models.text(TRAINED + 2)[None]
    caches = [StaticCache(patched.config, max_cache_len=LONG) for _ in range(2)]
    for start, end in ((0, TRAINED - 1), (TRAINED - 1, TRAINED), (TRAINED, TRAINED + 1), (TRAINED + 1, TRAINED + 2)):
        with torch.no_grad():
            found, expected = (
                model(ids[:, start:end], past_key_values=cache, use_cache=True).logits
                for model, cache in zip((compiled, patched), caches, strict=True)
            )
        assert (found - expected).abs().max() < 1e-4


def test_by_call_it_is_loaded_again(tmp_path: Path) -> None:
    """A model is built without values before its weights are read, and this scheme looks at positions."""
    ids, patched = models.text(LONG), patch_model(models.llama(), "jet_long", factor=4, length="sequence")
    patched.save_pretrained(tmp_path)
    assert torch.equal(models.logits(from_pretrained(tmp_path), ids), models.logits(patched, ids))


def test_gradients_equal_the_definition() -> None:
    ids = models.text(2 * TRAINED)
    text = replace(naive.causal(len(ids)), distance=defined(len(ids), 2), frequencies=naive.rope(models.HEAD_DIM))
    _, expected = models.dense_with_gradient("llama", models.llama(), ids, text)
    _, found = models.with_gradient(patch_model(models.llama(), "jet_long", factor=2), ids)
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("options", [{"window": TRAINED}, {"length": "sequence", "key_cache": "copies"}])
def test_options_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(OptionOutOfRange):
        patch_model(models.llama(), "jet_long", factor=4, **options)
