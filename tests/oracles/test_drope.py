"""DroPE: layers without rotation and norms as released."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import patch_model
from hf_posenc.errors import OptionOutOfRange, SchemeNotDefined
from hf_posenc.patching.state import base_model_of

from . import models, naive
from .models import HEAD_DIM, TRAINED
from .naive import Positions, rope

LIMIT = 1e-4  # logits of deviation 1 in float32 behind two layers of sharp softmax, as in test_whole_models
LENGTH = 2 * TRAINED
EPS = 1e-6


@pytest.mark.parametrize("kept", [[3], [0, 1], [0, 1, 2, 3]])
def test_kept_layers_rotate(kept: list[int]) -> None:
    ids, text, layer = models.text(LENGTH), naive.causal(LENGTH), iter(range(4))
    rotated = replace(text, frequencies=rope(HEAD_DIM))

    class Alternating(Positions):
        def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return (rotated if next(layer) in kept else text).mix(query, key, value)

    expected = naive.llama(models.llama(num_hidden_layers=4), ids, Alternating(text.seen, text.distance))
    patched = patch_model(models.llama(num_hidden_layers=4), "drope", keep_layers=kept, factor=2)
    assert (models.logits(patched, ids) - expected).abs().max() <= LIMIT
    everywhere = patch_model(models.llama(num_hidden_layers=4), "drope", factor=2)  # control
    assert (models.logits(everywhere, ids) - expected).abs().max() > 100 * LIMIT


@pytest.mark.parametrize("which", ["q", "k", "qk"])
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_norms_over_all_heads(which: str, model: str) -> None:
    """The released code norms a token's whole query (and key) before it is cut into heads; each layer has its gains."""
    build, formula = models.MODELS[model]
    ids, text = models.text(LENGTH), naive.causal(LENGTH)
    patched = patch_model(build(), "drope", qk_norm=which, factor=2)
    gains = {n: w for n, w in patched.named_parameters() if "posenc." in n}
    assert len(gains) == 2 * len(which)
    assert all(torch.equal(w, torch.ones_like(w)) for w in gains.values())
    for number, weight in enumerate(gains.values()):
        nn.init.normal_(weight, mean=2.0, generator=torch.Generator().manual_seed(number))
    _, adapter = base_model_of(patched)
    layers = iter([m.scheme for m in base_model_of(patched)[0].modules() if "posenc_owner" in m.__dict__])
    assert adapter.name == model

    class Normed(Positions):
        def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scheme = next(layers)
            return super().mix(normed(query, scheme.query_norm), normed(key, scheme.key_norm), value)

    def normed(x: Tensor, norm: Any) -> Tensor:
        if norm is None:
            return x
        flat = x.transpose(0, 1).flatten(1)
        flat = norm.weight.detach().double() * flat / (flat.square().mean(-1, keepdim=True) + EPS).sqrt()
        return flat.unflatten(1, (len(x), -1)).transpose(0, 1)

    expected = formula(build(), ids, Normed(text.seen, text.distance))
    assert (models.logits(patched, ids) - expected).abs().max() <= LIMIT
    plain = formula(build(), ids, text)  # control
    assert (plain - expected).abs().max() > 100 * LIMIT


def test_softmax_scale_multiplies_the_logits_of_dropped_layers() -> None:
    ids, text = models.text(LENGTH), naive.causal(LENGTH)
    patched = patch_model(models.llama(), "drope", softmax_scale=1.3, factor=2)
    assert (
        models.logits(patched, ids) - naive.llama(models.llama(), ids, replace(text, logit_scale=1.3))
    ).abs().max() <= LIMIT


def test_what_cannot_be_dropped_is_refused() -> None:
    with pytest.raises(OptionOutOfRange, match=r"among 0 … 1, got \[2\]"):
        patch_model(models.llama(), "drope", keep_layers=[2])
    with pytest.raises(OptionOutOfRange, match="in a table before all layers"):
        patch_model(models.gpt2(), "drope", keep_layers=[0])
    with pytest.raises(SchemeNotDefined, match="needs a decoder"):
        patch_model(models.bert(), "drope")
