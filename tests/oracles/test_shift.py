"""Relative schemes are invariant to a shift of all positions; absolute ones are not. Whole models, any shift."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from hf_posenc import list_schemes, patch_model
from hf_posenc.checks.case import perturb_parameters
from hf_posenc.errors import OptionOutOfRange, SchemeNotDefined

from . import models

LENGTH = 24
LIMIT = 1e-4  # sines of other angles, behind two layers of sharp softmax
# Everything registered is in one of these two: a new scheme has to say what it is.
RELATIVE = (
    *("none", "host", "drope", "rope", "mrope", "partial", "proportional", "abf", "xpos", "irope"),
    *("pi", "ntk", "ntk_parts", "ntk_parts_v1", "yarn", "llama3", "mrrope", "resonance", "clipped_rope", "pope"),
    *("alibi", "rel_bias", "t5", "kerple", "sandwich", "dyn_bias", "wavelet"),
    *("shaw", "transformer_xl", "deberta", "cope", "fox", "cable", "grape_a"),
    *("rerope", "leaky_rerope", "string", "ms_poe", "lm_infinite", "window", "sinks", "sink_logits", "scale_invariant"),
    *("pose", "shape", "cape"),
)
ABSOLUTE: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("sinusoidal", "integer", "binary", "learned_hier", "learned_interp", "randpos")},
    "learned": {"num_positions": 4 * models.TRAINED},
    "norm01": {},  # its unit is the length of the text, which positions beyond it stretch
    "rope_nd": {},  # a shift moves the ends of the grid's rows
    "self_extend": {"group": 5, "window": 6},  # groups begin at multiples of their size
    "dpe": {"groups": [2, 5], "window": 6},
    "dca": {},  # and so do chunks
    "jet_long": {},
    **{
        name: {} for name in ("dynamic_ntk", "dynamic_yarn", "longrope", "logn", "ssmax")
    },  # the length of a row is its position
    "llama4_temp": {"floor": 8},
    "fire": {"tau": 16.0},  # which normalises by the query's position where that is past tau
}
BLIND = {
    *((scheme, model) for scheme in ("integer", "norm01") for model in ("gpt2", "bert")),  # LayerNorm takes it away
    ("fire", "bert"),  # an encoder's rows all normalise by the length of the text
}


@lru_cache(maxsize=4)
def patched(model: str, scheme: str) -> Any:
    """A patched model; None where the scheme is not defined, or ends with the model's table."""
    build, _ = models.MODELS[model]
    try:
        one = patch_model(build(), scheme, factor=4, **ABSOLUTE.get(scheme, {}))
    except (SchemeNotDefined, OptionOutOfRange):
        return None
    perturb_parameters(one)
    return one.eval()


def read(model: Any, start: int) -> Tensor:
    """Logits of a text whose first token stands at ``start``."""
    with torch.no_grad():
        return model(models.text(LENGTH)[None], position_ids=start + torch.arange(LENGTH)[None]).logits


def pairs(names: Any) -> list[Any]:
    return [pytest.param(model, name, id=f"{name}-{model}") for name in names for model in models.MODELS]


@pytest.mark.parametrize(("model", "scheme"), pairs(RELATIVE))
@settings(max_examples=4, deadline=None, derandomize=True)  # of each pair: some six hundred in all, whole models
@given(start=some.integers(1, 7000))
def test_relative_schemes_are_shift_invariant(model: str, scheme: str, start: int) -> None:
    one = patched(model, scheme)
    if one is not None:
        assert (read(one, start) - read(one, 0)).abs().max() <= LIMIT


@pytest.mark.parametrize(("model", "scheme"), pairs(ABSOLUTE))
def test_absolute_schemes_are_not_shift_invariant(model: str, scheme: str) -> None:
    one = patched(model, scheme)
    if one is not None and (scheme, model) not in BLIND:
        assert (read(one, 17) - read(one, 0)).abs().max() > 10 * LIMIT


def test_every_scheme_is_classified() -> None:
    assert not set(RELATIVE) & set(ABSOLUTE)
    assert {record.name for record in list_schemes()} == {*RELATIVE, *ABSOLUTE}
