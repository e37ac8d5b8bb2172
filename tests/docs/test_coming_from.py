"""What the pages for users of other libraries say is equal, is: their definitions, written out here, against ours.

The definitions are those of LongLM at cdbbb06, rerope at acfe788 and LLaMA-Factory at ff6d4d1, and those
RoPE types of the installed transformers that follow the length.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
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
PER_PAIR = [1.0 + 0.5 * m for m in range(PAIRS)]


def logits(model: Any, length: int) -> Tensor:
    with torch.no_grad():
        return model(TEXT[:, :length]).logits


def native(parameters: dict[str, Any], layers: int = 2, reach: int = LONG) -> LlamaForCausalLM:
    """Plain transformers with these ``rope_parameters``, and the weights of the tiny Llama."""
    plain = tiny_model("llama")
    config = copy.deepcopy(plain.config)
    config.rope_parameters = {"rope_theta": 10000.0, **parameters}
    config.max_position_embeddings, config.num_hidden_layers = reach, layers
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict({name: w for name, w in plain.state_dict().items() if f"layers.{layers}." not in name})
    return model


def ours(scheme: str, layers: int = 2, **options: Any) -> Any:
    model = tiny_model("llama")
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = layers
    return patch_model(model, scheme, factor=FACTOR, **options)


ORIGINAL = {"original_max_position_embeddings": TRAINED_LENGTH}


LENGTH_DEPENDENT = {
    "dynamic": ({"factor": 2.0}, TRAINED_LENGTH, "dynamic_ntk", {"multiplier": 2.0}),
    "longrope": (
        {"factor": FACTOR, "short_factor": [1.0] * PAIRS, "long_factor": PER_PAIR, **ORIGINAL},
        LONG,
        "longrope",
        {"long_factor": PER_PAIR},
    ),
}


@pytest.mark.parametrize("name", LENGTH_DEPENDENT)
def test_transformers_types_that_follow_the_length(name: str) -> None:
    """Equal up to the trained length; beyond, for the last token of one layer. Theirs has one rotation for all."""
    parameters, reach, scheme, options = LENGTH_DEPENDENT[name]
    theirs = native({"rope_type": name, **parameters}, layers=1, reach=reach)
    mine = ours(scheme, layers=1, **options)
    assert (logits(mine, TRAINED_LENGTH) - logits(theirs, TRAINED_LENGTH)).abs().max() < LIMIT
    apart = (logits(mine, LONG) - logits(theirs, LONG)).abs().amax(-1)[0]
    assert apart[-1] < LIMIT
    assert apart[TRAINED_LENGTH // 2 : TRAINED_LENGTH].max() > 100 * LIMIT


# ---- libraries that remap distances: attention of the first layer, each pair rotated by the distance they give it


def by_hand(distance: Tensor, frequencies: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Attention weights ``[head, query, key]`` of the tiny Llama's first layer, from distances ``[query, key]``."""
    model = tiny_model("llama")
    layer, length = model.model.layers[0], len(distance)
    attention = layer.self_attn
    with torch.no_grad():
        hidden = layer.input_layernorm(model.model.embed_tokens(TEXT[:, :length]))[0]
        q, k = (
            project(hidden).double().unflatten(-1, (-1, attention.head_dim)).transpose(0, 1)
            for project in (attention.q_proj, attention.k_proj)
        )
    k = k.repeat_interleave(len(q) // len(k), dim=0)
    q, k = (torch.complex(*x.chunk(2, dim=-1)) for x in (q, k))  # the half layout of Llama
    pairs = q.shape[-1]
    if frequencies is None:
        frequencies = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    turn = torch.polar(torch.ones(()).double(), distance.double()[..., None] * frequencies)
    scores = torch.einsum("him,hjm,ijm->hij", q, k.conj(), turn).real / math.sqrt(2 * pairs)
    if scale is not None:
        scores = scores * scale[:, None]
    later = torch.ones_like(distance).triu(1).bool()
    return scores.masked_fill(later, -torch.inf).softmax(-1)


def attention_of(model: Any, length: int = LONG) -> Tensor:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(TEXT[:, :length], output_attentions=True).attentions[0][0].double()


QUERY, KEY = torch.arange(LONG)[:, None], torch.arange(LONG)[None, :]


def logn(trained: int) -> Tensor:
    """rerope's and LongLM's factor of each query."""
    return ((torch.arange(LONG) + 1).log() / math.log(trained)).clip(1).double()


def longlm(group: int, window: int) -> Tensor:
    """`self_extend_forward`: the neighbour mask, and the positions of groups."""
    neighbour = torch.ones(LONG, LONG).tril()
    neighbour[window:, :-window] -= torch.ones(LONG - window, LONG - window).tril()
    grouped = (QUERY // group + window - window / group) - KEY // group
    return torch.where(neighbour.bool(), (QUERY - KEY).double(), grouped.double())


def rerope(window: int) -> Tensor:
    return torch.where((QUERY - KEY).abs() < window, QUERY - KEY, window).double()


def leaky(window: int, k: float) -> Tensor:
    """Query at (i + w (k − 1)) / k, key at j / k."""
    return torch.where((QUERY - KEY).abs() < window, (QUERY - KEY).double(), (QUERY + window * (k - 1)) / k - KEY / k)


REMAPS: dict[str, tuple[Callable[[], Tensor], Tensor | None, str, dict[str, Any]]] = {
    "LongLM": (lambda: longlm(6, 10), None, "self_extend", {"group": 6, "window": 10, "floor": "float"}),
    "LongLM with scale_base": (
        lambda: longlm(6, 10), logn(TRAINED_LENGTH), "self_extend+logn", {"group": 6, "window": 10, "floor": "float"},
    ),
    "rerope": (lambda: rerope(12), logn(TRAINED_LENGTH), "rerope+logn", {"window": 12}),
    "leaky rerope": (lambda: leaky(12, 16.0), logn(TRAINED_LENGTH), "leaky_rerope+logn", {"window": 12, "k": 16.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", REMAPS)
def test_remaps(name: str) -> None:
    distances, scale, scheme, options = REMAPS[name]
    found = attention_of(ours(scheme, **options))
    assert (found - by_hand(distances(), scale=scale)).abs().max() < LIMIT
    assert (found - by_hand((QUERY - KEY).double(), scale=scale)).abs().max() > 100 * LIMIT  # control


def test_the_paper_and_the_code_of_self_extend_differ() -> None:
    """Only where the group does not divide the window."""
    apart = lambda window: (  # noqa: E731
        attention_of(ours("self_extend", group=6, window=window)) - by_hand(longlm(6, window))
    ).abs().max()  # fmt: skip
    assert apart(12) < LIMIT < 10 * LIMIT < apart(10)


def test_mixed_ntk_of_rerope_is_longrope_with_its_factors() -> None:
    """`ntk_patch.py`: ω_m exp(−a m^b), m counted from 1, a = ln k / (d / 2)^b, on every length."""
    k, b = 12, 0.75
    stretch = [math.exp(math.log(k) / PAIRS**b * m**b) for m in range(1, PAIRS + 1)]
    options = {"short_factor": stretch, "long_factor": stretch, "attention_factor": 1.0}
    unscaled = 10000.0 ** (-torch.arange(PAIRS, dtype=torch.float64) / PAIRS)
    found = attention_of(ours("longrope+logn", **options))
    expected = by_hand((QUERY - KEY).double(), unscaled / torch.tensor(stretch).double(), logn(TRAINED_LENGTH))
    assert (found - expected).abs().max() < LIMIT
    assert (found - by_hand((QUERY - KEY).double(), scale=logn(TRAINED_LENGTH))).abs().max() > 100 * LIMIT  # control


# ---- LLaMA-Factory


def test_factor_of_llama_factory() -> None:
    """``configure_rope`` rounds cutoff_len / trained length up; ours is the quotient, and takes that factor as well."""
    cutoff = 5 * TRAINED_LENGTH // 2
    theirs = native({"rope_type": "linear", "factor": float(math.ceil(cutoff / TRAINED_LENGTH))})
    patch = lambda **lengths: logits(patch_model(tiny_model("llama"), "pi", **lengths), cutoff)  # noqa: E731
    assert (patch(factor=3) - logits(theirs, cutoff)).abs().max() < LIMIT
    assert (patch(target_length=cutoff) - logits(theirs, cutoff)).abs().max() > 100 * LIMIT
