"""Checks of storage and copies beyond this process: pickle, a fresh interpreter, gradient checkpointing."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor

from hf_posenc import checks
from hf_posenc.checks import Case
from hf_posenc.checks.checkpoint import answer_in, read_elsewhere, store
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.patching.patch import unpatch_model

from .matrix import BY_HOOK, EVERY


@pytest.mark.parametrize("pair", EVERY, ids=str)
def test_pickle_round_trip(pair: Case) -> None:
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(TRAINED_LENGTH + 1, model))
        twin = pickle.loads(pickle.dumps(model))
        assert torch.equal(forward(twin, tokens), forward(model, tokens))
        unpatch_model(twin)
        forward(model, tokens)


@pytest.fixture(scope="session")
def loaded_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tensor, Tensor]]:
    """What each pair read before it was saved, and after one fresh process loaded all of them."""
    folders = {str(pair): str(tmp_path_factory.mktemp("saved")) for pair in BY_HOOK}
    before = {str(pair): store(pair, folders[str(pair)])[0] for pair in BY_HOOK}
    read_elsewhere(list(folders.values()))
    return {name: (before[name], answer_in(folder)) for name, folder in folders.items()}


@pytest.mark.parametrize("pair", BY_HOOK, ids=str)
def test_saved_equals_loaded_in_a_fresh_process(pair: Case, loaded_elsewhere: dict[str, tuple[Tensor, Tensor]]) -> None:
    before, after = loaded_elsewhere[str(pair)]
    assert torch.equal(before, after)


@pytest.mark.parametrize("pair", BY_HOOK, ids=str)
def test_reentrant_checkpointing_changes_no_gradient(pair: Case) -> None:
    gap = checks.checkpointing_changes_no_gradient(pair, reentrant=True)
    assert not gap.failed, gap


@pytest.mark.full
@pytest.mark.parametrize("pair", EVERY, ids=str)
def test_everything_in_a_fresh_process_and_reentrant(pair: Case) -> None:
    for gap in (checks.saved_equals_loaded(pair, fresh=True), checks.checkpointing_changes_no_gradient(pair, True)):
        assert not gap.failed, gap


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("check", ["cache", "batch", "padding", "generation", "backend", "causality", "unpatch"])
@pytest.mark.parametrize("pair", EVERY, ids=str)
def test_low_precision(pair: Case, check: str, dtype: torch.dtype) -> None:
    checks.assert_passes(check, Case(pair.model, pair.scheme, dtype=dtype, **pair.options))
