"""Under autocast, attention rounds its operands and its result to bfloat16, and nothing in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model, scheme_of
from hf_posenc.checks.case import Case
from hf_posenc.checks.forward import positions_from, random_tokens
from hf_posenc.checks.precision import FLOOR
from hf_posenc.checks.reference_model import patched_layers, replace_attend
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.forward.engine_backend import AttentionOutput
from hf_posenc.patching.reference_attention import attention_output, reference_terms

from ..families.tiny import tiny
from ..families.tiny import tokens as text

AS_TORCH = 1.5
"""Error of attention in bfloat16 relative to torch's own. Scores rounded to bfloat16 have 3 to 5 under CoPE."""


@pytest.mark.parametrize("model", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("scheme", ["cope", "fire", "transformer_xl", "alibi"])
@pytest.mark.parametrize("trains", [False, True])
def test_scores_are_not_rounded(model: str, scheme: str, trains: bool) -> None:
    errors: list[float] = []

    def attend(
        own: Any, layer: PatchedAttention, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, **call: Any
    ) -> AttentionOutput:
        output, weights = own(q, k, v, hidden=hidden, **call)
        with torch.autocast("cpu", enabled=False), torch.no_grad():
            ref = reference_terms(layer, layer.scheme, positions, hidden, {})
            exact = attention_output(ref, q, k, v)
            by_torch = attention_output(ref, q, k, v, q.dtype).double()
        error, rounding = (float((x - exact).pow(2).mean().sqrt()) for x in (output.transpose(1, 2).double(), by_torch))
        errors.append(error / max(rounding, FLOOR * torch.finfo(q.dtype).eps * float(exact.abs().max())))
        return output, weights

    with Case(model, scheme).patched() as patched:
        tokens = random_tokens(patched, 70)
        positions = positions_from(patched, tokens.shape[1], 0)
        with (
            replace_attend(patched_layers(patched), attend),
            torch.autocast("cpu", dtype=torch.bfloat16),
            torch.set_grad_enabled(trains),
        ):
            logits = patched(tokens).logits
    assert logits.requires_grad == trains
    assert 0 < max(errors) <= AS_TORCH


@pytest.mark.parametrize("scheme", ["fox", "deberta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_scheme_reads_of_its_layer_has_the_dtype_of_its_weights(scheme: str, dtype: torch.dtype) -> None:
    """RemBERT's first layer reads a projection, which autocast leaves in bfloat16; GPT-2's a norm, in float32."""
    for family, masked in (("rembert", True), ("gpt2", False)):
        model = patch_model(tiny(family, masked=masked).to(dtype), scheme)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(input_ids=text(40)).logits.float().square().mean().backward()
        assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in scheme_of(model).parameters())
