"""What the pages for users of other libraries say is equal, is: their definitions, written out here, against ours.

The definitions are those of rerope at acfe788 and LLaMA-Factory at ff6d4d1. Remaps, and the RoPE types of transformers
that follow the length, have theirs in `tests/oracles`.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model

LIMIT = 1e-4
FACTOR = 4
LONG = FACTOR * TRAINED_LENGTH
TEXT = torch.randint(3, 96, (1, LONG), generator=torch.Generator().manual_seed(0))
PAIRS = 8  # of a head of 16 channels


def logits(model: Any, length: int) -> Tensor:
    with torch.no_grad():
        return model(TEXT[:, :length]).logits


def by_hand(frequencies: Tensor, scale: Tensor) -> Tensor:
    """Attention weights ``[head, query, key]`` of the tiny Llama's first layer."""
    model, distance = tiny_model("llama"), torch.arange(LONG)[:, None] - torch.arange(LONG)
    layer = model.model.layers[0]
    attention = layer.self_attn
    with torch.no_grad():
        hidden = layer.input_layernorm(model.model.embed_tokens(TEXT))[0]
        q, k = (
            project(hidden).double().unflatten(-1, (-1, attention.head_dim)).transpose(0, 1)
            for project in (attention.q_proj, attention.k_proj)
        )
    k = k.repeat_interleave(len(q) // len(k), dim=0)
    q, k = (torch.complex(*x.chunk(2, dim=-1)) for x in (q, k))  # the half layout of Llama
    turn = torch.polar(torch.ones(()).double(), distance.double()[..., None] * frequencies)
    scores = torch.einsum("him,hjm,ijm->hij", q, k.conj(), turn).real / math.sqrt(2 * PAIRS)
    later = torch.ones_like(distance).triu(1).bool()
    return (scores * scale[:, None]).masked_fill(later, -torch.inf).softmax(-1)


def test_mixed_ntk_of_rerope_is_longrope_with_its_factors() -> None:
    """`ntk_patch.py`: ω_m exp(−a m^b), m counted from 1, a = ln k / (d / 2)^b, on every length."""
    k, b = 12, 0.75
    stretch = [math.exp(math.log(k) / PAIRS**b * m**b) for m in range(1, PAIRS + 1)]
    options = {"short_factor": stretch, "long_factor": stretch, "attention_factor": 1.0}
    model = patch_model(tiny_model("llama"), "longrope+logn", factor=FACTOR, **options)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(TEXT, output_attentions=True).attentions[0][0].double()
    unscaled = 10000.0 ** (-torch.arange(PAIRS, dtype=torch.float64) / PAIRS)
    logn = ((torch.arange(LONG) + 1).log() / math.log(TRAINED_LENGTH)).clip(1).double()
    assert (found - by_hand(unscaled / torch.tensor(stretch).double(), logn)).abs().max() < LIMIT
    assert (found - by_hand(unscaled, logn)).abs().max() > 100 * LIMIT  # control


def test_factor_of_llama_factory() -> None:
    """``configure_rope`` rounds cutoff_len / trained length up; ours is the quotient, and takes that factor as well."""
    cutoff = 5 * TRAINED_LENGTH // 2
    plain = tiny_model("llama")
    config = copy.deepcopy(plain.config)
    factor = float(math.ceil(cutoff / TRAINED_LENGTH))
    config.rope_parameters = {"rope_theta": 10000.0, "rope_type": "linear", "factor": factor}
    config.max_position_embeddings = LONG
    theirs = LlamaForCausalLM(config).eval()
    theirs.load_state_dict(plain.state_dict())
    patch = lambda **lengths: logits(patch_model(tiny_model("llama"), "pi", **lengths), cutoff)  # noqa: E731
    assert (patch(factor=3) - logits(theirs, cutoff)).abs().max() < LIMIT
    assert (patch(target_length=cutoff) - logits(theirs, cutoff)).abs().max() > 100 * LIMIT
