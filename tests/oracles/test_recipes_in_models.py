"""Training recipes in whole models: embeddings, rotations and biases all use the drawn positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import describe, patch_model, scheme_of
from hf_posenc.errors import FractionalPosition, NeedsWholeText, SchemeNotDefined

from . import models, naive
from .models import HEAD_DIM, HEADS, TRAINED, WIDTH
from .naive import Positions

LIMIT = 1e-4  # logits of deviation 1 in float32 behind two layers of sharp softmax, as in test_whole_models
TARGET = 8 * TRAINED
IN_STEPS = torch.arange(TRAINED)[None]


def rotated(text: Positions, positions: Tensor) -> Positions:
    return replace(text, distance=positions[:, None] - positions, frequencies=naive.rope(HEAD_DIM))


def interpolated(text: Positions, positions: Tensor) -> Positions:
    return replace(rotated(text, positions), frequencies=naive.rope(HEAD_DIM) * TRAINED / TARGET)


def biased(text: Positions, positions: Tensor) -> Positions:
    return replace(text, bias=-naive.slopes(HEADS) * (positions[:, None] - positions).abs())


def coded(text: Positions, positions: Tensor) -> Positions:
    angles = positions.double()[:, None] * naive.rope(WIDTH)
    return replace(text, code=torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))


WHOLE: list[tuple[str, str, Callable[[Positions, Tensor], Positions]]] = [
    ("pose", "llama", rotated),
    ("randpos", "llama", rotated),
    ("pi+pose", "llama", interpolated),
    ("rope+randpos", "gpt2", rotated),
    ("alibi+pose", "gpt2", biased),
    ("alibi+cape", "bert", biased),
    ("rope+cape", "llama", rotated),
    ("sinusoidal+cape", "gpt2", coded),
    ("sinusoidal+shape", "bert", coded),
    ("sinusoidal+randpos", "bert", coded),
]


@pytest.mark.parametrize(("name", "model", "does"), WHOLE, ids=[f"{name}-{model}" for name, model, _ in WHOLE])
def test_whole_models_in_training(name: str, model: str, does: Callable[[Positions, Tensor], Positions]) -> None:
    """No mask is given: gaps between positions are not taken for packed documents."""
    build, formula = models.MODELS[model]
    ids = models.text(TRAINED)
    patched = patch_model(without_dropout(build()), name, factor=8).train()
    torch.manual_seed(4)
    positions = scheme_of(patched).reposition(IN_STEPS, training=True)[0]
    torch.manual_seed(4)
    ours = models.logits(patched, ids)
    assert (ours - formula(build(), ids, does(naive.free(model, TRAINED), positions))).abs().max() <= LIMIT
    untouched = formula(build(), ids, does(naive.free(model, TRAINED), IN_STEPS[0]))  # control
    assert (ours - untouched).abs().max() > 100 * LIMIT


@pytest.mark.parametrize("name", ["pose", "shape", "cape", "randpos"])
def test_evaluation(name: str) -> None:
    """Only randomised positions stay random, as released; then a text cannot be continued."""
    ids = models.text(TRAINED)
    patched, unpatched = patch_model(models.llama(), name, factor=8), models.llama()
    assert scheme_of(patched).needs_whole_text == (name == "randpos")
    start, kept = ids[None, :9], {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    if name == "randpos":
        torch.manual_seed(0)
        assert (models.logits(patched, ids) - models.logits(patched, ids)).abs().max() > 0.1
        with pytest.raises(NeedsWholeText, match="use_cache=False"):
            patched.generate(start, **kept)
        assert patched.generate(start, **kept, use_cache=False).shape == (1, 12)
    else:
        assert describe(patched).proof.verdict == "identity"
        assert (models.logits(patched, ids) - models.logits(unpatched, ids)).abs().max() <= LIMIT
        assert torch.equal(patched.generate(start, **kept), unpatched.generate(start, **kept))


def test_continuing_a_cache_in_training_is_refused() -> None:
    patched = patch_model(models.llama(), "pose", factor=8).train()
    cache = patched(models.text(9)[None], use_cache=True).past_key_values
    with pytest.raises(NeedsWholeText, match="9 tokens are cached"):
        patched(models.text(1)[None], past_key_values=cache)


def test_tables_refuse_fractional_positions() -> None:
    """CAPE's positions are fractional: tables and digits are refused, on codes of a function it trains."""
    ids = models.text(TRAINED)[None]
    for name in ("cape", "learned+cape"):
        with pytest.raises(SchemeNotDefined, match=r"between the rows of .*table.* \"rope\+cape\""):
            patch_model(models.gpt2(), name)
    patched = patch_model(models.gpt2(), "binary+cape")
    assert patched(ids).logits.isfinite().all()  # evaluation has whole positions
    with pytest.raises(FractionalPosition, match="function of position"):
        patched.train()(ids)
    assert patch_model(models.gpt2(), "sinusoidal+cape").train()(ids).logits.isfinite().all()


def without_dropout(model: Any) -> Any:
    """GPT-2 and BERT drop activations in training, the formulas do not."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model
