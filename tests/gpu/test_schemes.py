"""Every scheme on a Llama on a GPU, against the same model on the CPU in float64."""

from __future__ import annotations

import pytest
import torch

from hf_posenc import is_patched, patch_model
from hf_posenc.attention.routes import flex
from hf_posenc.checks.tiny_models import tiny_model

from .models import (
    SCHEMES,
    UNPATCHED,
    WHOLE,
    WITHIN,
    each,
    exact,
    gap,
    gradient_gap,
    gradients,
    grouped_query_model,
    patched,
    rms_gap,
    tokens_of,
)
from .test_engine import compiles_nothing

ROUNDING = 1e-4  # of the largest logit: float32 on a CPU is off by 2e-6, TF32 would be by 1e-2
GRADIENT_ROUNDING = 1e-3  # of the largest entry: sums over all tokens, in an order that varies
MULTIPLE = {"cope": 10}  # its positions are sums of gates over all keys, and so are their rounding errors
DECODED = 6
CACHED = [scheme for scheme in SCHEMES if scheme not in WHOLE]


@pytest.mark.parametrize("scheme", each(SCHEMES, "schemes"))
def test_logits(scheme: str, device: str) -> None:
    model, tokens = patched(scheme), tokens_of(scheme)
    with torch.no_grad():
        theirs = exact(model)(tokens).logits
        ours = model.to(device)(tokens.to(device)).logits
    assert ours.device.type == torch.device(device).type
    assert gap(ours, theirs) <= ROUNDING


@pytest.mark.parametrize("scheme", each(CACHED, "schemes decode"))
def test_decoding(scheme: str, device: str) -> None:
    """A text read in one piece, and the same read up to its last tokens, which come one by one."""
    model, tokens = patched(scheme).to(device), tokens_of(scheme).to(device)
    with torch.no_grad():
        whole = model(tokens).logits[:, -DECODED:]
        cache = model(tokens[:, :-DECODED], use_cache=True).past_key_values
        last = tokens[:, -DECODED:].split(1, dim=1)
        found = [model(token, past_key_values=cache, use_cache=True).logits for token in last]
    assert gap(torch.cat(found, dim=1), whole) <= ROUNDING


@pytest.mark.parametrize("length", [20, 100])
@pytest.mark.parametrize("scheme", each(SCHEMES, "schemes grouped"))
def test_short_texts_under_grouped_query_attention(scheme: str, length: int, device: str) -> None:
    """Below 128 queries torch has a decoding kernel, whose tile holds 128 of all heads of a group."""
    model, tokens = patched(scheme, grouped_query_model()), tokens_of(scheme)[:, :length]
    with torch.no_grad():
        theirs = exact(model)(tokens).logits
        ours = model.to(device)(tokens.to(device)).logits
    assert gap(ours, theirs) <= ROUNDING


@pytest.mark.parametrize("scheme", each(SCHEMES, "schemes bfloat16"))
def test_bfloat16_rounds_about_as_the_unpatched_model(scheme: str, device: str) -> None:
    """Of most schemes the ratio is below 1 on a CPU; scores that grow with the length (`ssmax`) bring it to 1.7."""

    def error(name: str) -> float:
        model = patched(name)
        with torch.no_grad():
            theirs = exact(model.bfloat16())(tokens).logits
            return rms_gap(model.to(device)(tokens.to(device)).logits, theirs)

    tokens = tokens_of(scheme)
    assert error(scheme) <= MULTIPLE.get(scheme, 3) * error(UNPATCHED)


@pytest.mark.parametrize("scheme", each(SCHEMES, "schemes trained"))
def test_gradients(scheme: str, device: str) -> None:
    model, tokens = patched(scheme), tokens_of(scheme)
    theirs = gradients(exact(model), tokens)
    ours = gradients(model.to(device), tokens.to(device))
    value, name = gradient_gap(ours, theirs)
    assert value <= GRADIENT_ROUNDING, name


def test_another_scheme_shows(device: str) -> None:
    """Control: the comparisons above tell two schemes apart, and two factors of one."""
    tokens = tokens_of("yarn")
    with torch.no_grad():
        ours = patched("yarn").to(device)(tokens.to(device)).logits
        for other in (UNPATCHED, "ntk_parts", "pi"):
            assert gap(ours, exact(patched(other))(tokens).logits) > 100 * ROUNDING
    ours_gradients = gradients(patched("yarn").to(device), tokens.to(device))
    assert gradient_gap(ours_gradients, gradients(exact(patched("ntk_parts")), tokens))[0] > 10 * GRADIENT_ROUNDING


@pytest.mark.parametrize("scheme", SCHEMES)
def test_patching_compiles_nothing(scheme: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof of effect runs on the GPU; a kernel compiled for it took 40 seconds."""
    monkeypatch.undo()  # of the fixture for short texts
    monkeypatch.setattr(flex, "kernel", compiles_nothing)
    model = tiny_model("llama").to(device, torch.bfloat16)
    assert is_patched(patch_model(model, scheme, factor=None if scheme in WITHIN else 4))
