"""Pickle, checkpoints in a fresh process, re-entrant gradient checkpointing, and low precision."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor

from hf_posenc import checks
from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.checkpoint import fresh_process_output, load_in_fresh_process, save_case
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.patching.patch import unpatch_model

from .case_lists import ONE_PER_HOOKS, QUICK


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_pickle_round_trip(case: Case) -> None:
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(TRAINED_LENGTH + 1, model))
        copied = pickle.loads(pickle.dumps(model))
        assert torch.equal(forward(copied, tokens), forward(model, tokens))
        unpatch_model(copied)
        forward(model, tokens)


@pytest.fixture(scope="session")
def fresh_process_outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tensor, Tensor]]:
    """Outputs of each case before it was saved, and after one fresh process loaded all of them."""
    folders = {str(case): str(tmp_path_factory.mktemp("saved")) for case in ONE_PER_HOOKS}
    before = {str(case): save_case(case, folders[str(case)])[0] for case in ONE_PER_HOOKS}
    load_in_fresh_process(list(folders.values()))
    return {name: (before[name], fresh_process_output(folder)) for name, folder in folders.items()}


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE_PER_HOOKS, ids=str)
def test_saved_equals_loaded_in_a_fresh_process(
    case: Case, fresh_process_outputs: dict[str, tuple[Tensor, Tensor]]
) -> None:
    before, after = fresh_process_outputs[str(case)]
    assert torch.equal(before, after)


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK, ids=str)
def test_reentrant_checkpointing_changes_no_gradient(case: Case) -> None:
    deviation = CHECKS["gradient_checkpointing"](case, reentrant=True)
    assert not deviation.failed, deviation


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("check", ["cache", "batch", "padding", "padded_decoding", "backend", "causality", "unpatch"])
@pytest.mark.parametrize("case", ONE_PER_HOOKS, ids=str)
def test_low_precision(case: Case, check: str, dtype: torch.dtype) -> None:
    checks.assert_passes(check, Case(case.model, case.scheme, dtype=dtype, **case.options))
