"""What a scheme keeps of its options is computed again after one of them changed, of a part or of the whole."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from hf_posenc import patch_model
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.kept_answers import KEPT

from ..small_models import llama


def logits(model: Any) -> torch.Tensor:
    """Of a prefill and of decoding."""
    tokens, cache = torch.arange(29)[None], DynamicCache()
    with torch.no_grad():
        first = model(tokens[:, :26], past_key_values=cache).logits
        rest = [model(tokens[:, n : n + 1], past_key_values=cache).logits for n in range(26, 29)]
    return torch.cat([first, *rest], dim=1)


@pytest.mark.parametrize(
    ("name", "part", "option", "value"),
    [
        ("rerope", 1, "window", 3),
        ("string", 1, "local", 2),
        ("yarn+rerope", 1, "window", 3),
        ("rope+alibi", 1, "interpolate", 4.0),
        ("yarn", 0, "attention_factor", 1.5),
        ("rope", 0, "base", 50.0),
    ],
)
def test_an_option_changed_after_patching_is_followed(name: str, part: int, option: str, value: float) -> None:
    """As if the value had been there before anything was computed."""
    used, fresh = (patch_model(llama(), name, **({"factor": 2} if "yarn" in name else {})) for _ in range(2))
    before = logits(used)
    for model in (used, fresh):
        setattr(model.model.layers[0].self_attn.scheme.schemes[part], option, value)
    after = logits(used)
    assert torch.equal(after, logits(fresh))
    assert not torch.equal(after, before)


def test_what_is_kept_goes_when_a_part_changes() -> None:
    scheme: Scheme = patch_model(llama(), "rerope").model.layers[0].self_attn.scheme
    assert scheme.keep("answer", lambda: 1) == 1
    assert scheme.keep("answer", lambda: 2) == 1
    scheme.schemes[0].note = "a part's"  # type: ignore[assignment]
    assert scheme.keep("answer", lambda: 2) == 2
    scheme.note = "its own"  # type: ignore[assignment]
    assert scheme.keep("answer", lambda: 3) == 3


def test_a_copy_keeps_its_own() -> None:
    model = patch_model(llama(), "rerope")
    before, apart = logits(model), copy.deepcopy(model)
    scheme = apart.model.layers[0].self_attn.scheme
    assert not any(name in vars(part) for part in (scheme, *scheme.schemes) for name in KEPT)
    assert not any(name.encode() in pickle.dumps(model) for name in KEPT)
    scheme.schemes[1].window = 3
    assert not torch.equal(logits(apart), before)
    assert torch.equal(logits(model), before)
