"""Pickle, checkpoints in a fresh process, re-entrant gradient checkpointing, and low precision."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hf_posenc import checks
from hf_posenc.checks import CHECKS, Case
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


PROGRAM = """
import sys, torch
from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.checks.forward import forward
for folder in sys.argv[1:]:
    tokens = torch.load(folder + "/tokens.pt")
    torch.save(forward(from_pretrained(folder), tokens), folder + "/output.pt")
"""


@pytest.mark.slow
def test_saved_equals_loaded_in_a_fresh_process(tmp_path: Path) -> None:
    before: dict[str, Tensor] = {}
    for number, case in enumerate(ONE_PER_HOOKS):
        folder = str(tmp_path / str(number))
        with case.patched() as model:
            tokens = random_tokens(model, case.clip_length(case.trained_length + 9, model))
            model.save_pretrained(folder)
            torch.save(tokens, folder + "/tokens.pt")
            before[folder] = forward(model, tokens)
    subprocess.run([sys.executable, "-c", PROGRAM, *before], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    for folder, output in before.items():
        assert torch.equal(torch.load(folder + "/output.pt"), output), folder


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
