"""``ms_poe`` and ``dpe``: a rotation that differs by head, or by band of frequencies, against dense float64 sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import describe, from_pretrained, patch_model
from hf_posenc.errors import CannotCombine, OptionOutOfRange, SchemeNotDefined
from hf_posenc.insight.advise.memory import Memory, cache_under
from hf_posenc.patching.state import scheme_of
from hf_posenc.schemes.remap.ms_poe import order_of

from ..families.tiny import tiny, tokens
from . import models, naive
from .models import HEAD_DIM, HEADS, TRAINED
from .naive import Positions

LENGTH = 90
PAIRS, LAYERS = HEAD_DIM // 2, 2
IDS = tokens(40)
PADDED = torch.tensor([[0] * 11 + [1] * 29, [1] * 40])


@dataclass(frozen=True)
class ByAngle(Positions):
    """Positions of which every head and pair has angles of its own, one ``[heads or 1, L, L, pairs]`` a layer."""

    angles: tuple[Tensor, ...] = ()

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        layer = self.__dict__.setdefault("layer", [0])
        angles = self.angles[layer[0] % len(self.angles)]
        layer[0] += 1
        groups = len(query) // len(key)
        key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
        turned = torch.polar(torch.ones_like(angles), angles).expand(len(query), -1, -1, -1)
        q, k = naive.as_complex(query), naive.as_complex(key)
        scores = torch.einsum("him,hjm,hijm->hij", q, k.conj(), turned).real / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~self.seen, -math.inf).softmax(-1)
        return (weights @ value).transpose(0, 1).flatten(1)


def by_head(*orders: list[int], least: float = 1.2, most: float = 1.8) -> tuple[Tensor, ...]:
    """Angles (i − j) ω / r_h, r from ``least`` to ``most`` along the order of heads."""
    found = []
    for order in orders:
        ratios = torch.empty(HEADS, dtype=torch.float64)
        ratios[order] = torch.linspace(least, most, HEADS, dtype=torch.float64)
        distance = naive.distances(LENGTH).double() / ratios[:, None, None]
        found.append(distance[..., None] * naive.rope(HEAD_DIM))
    return tuple(found)


def by_band(window: int, *groups: int) -> tuple[Tensor, ...]:
    """Angles Δ'_m ω_m, Δ' counted in groups beyond the window, of a size for each band."""
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    places = []
    for m in range(PAIRS):
        group = groups[m * len(groups) // PAIRS]
        far = i // group - j // group + window - window // group
        places.append(torch.where(i - j < window, i - j, far))
    return (torch.stack(places, -1)[None].double() * naive.rope(HEAD_DIM),)


CASES: dict[str, tuple[str, dict[str, Any], Callable[[], tuple[Tensor, ...]]]] = {
    "heads as they stand": ("ms_poe", {}, lambda: by_head([0, 1, 2, 3])),
    "other heads first": ("ms_poe", {"order": [2, 0, 3, 1]}, lambda: by_head([2, 0, 3, 1])),
    "each layer its order": (
        "ms_poe", {"order": [[2, 0, 3, 1], [3, 1, 2, 0]]}, lambda: by_head([2, 0, 3, 1], [3, 1, 2, 0]),
    ),
    "other ratios": ("ms_poe", {"r_min": 1, "r_max": 4}, lambda: by_head([0, 1, 2, 3], least=1, most=4)),
    "groups of Self-Extend": ("dpe", {}, lambda: by_band(16, *[5] * 8)),
    "as of Llama 3": ("dpe", {"groups": [2, 8, 2, 8, 32, 32, 32, 4]}, lambda: by_band(16, 2, 8, 2, 8, 32, 32, 32, 4)),
    "bands of several pairs": ("dpe", {"groups": [1, 7, 9], "window": 10}, lambda: by_band(10, 1, 7, 9)),
}  # fmt: skip


@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("case", CASES)
def test_in_a_whole_model(case: str, kv_heads: int) -> None:
    """Outputs, and gradients of the embeddings."""
    scheme, options, angles = CASES[case]
    model = patch_model(models.llama(num_key_value_heads=kv_heads), scheme, target_length=LENGTH, **options)
    ids, text = models.text(LENGTH), naive.causal(LENGTH)
    embedded = model.get_input_embeddings()(ids).detach()[None].requires_grad_()
    found = model(inputs_embeds=embedded).logits[0]
    code = torch.zeros(LENGTH, models.WIDTH, dtype=torch.float64, requires_grad=True)
    plain = models.llama(num_key_value_heads=kv_heads)
    dense = naive.llama.__wrapped__  # with gradients
    wanted = dense(plain, ids, ByAngle(text.seen, text.distance, code=code, angles=angles()))
    assert (found - wanted).abs().max() < 2e-4
    for logits in (found, wanted):
        logits.square().mean().backward()
    torch.testing.assert_close(embedded.grad[0].double(), code.grad, atol=1e-5, rtol=2e-3)
    others = naive.llama(plain, ids, replace(text, frequencies=naive.rope(HEAD_DIM)))
    assert (found - others).abs().max() > 0.1  # control


DECODERS = ("llama", "qwen3", "gemma3_text")
SAME = [
    ("ms_poe", {"r_min": 3.0, "r_max": 3.0}, "pi", {"factor": 3}),
    ("dpe", {"groups": [9, 9], "window": 11}, "self_extend", {"group": 9, "window": 11}),
    ("dpe", {"groups": [1, 1]}, "rope", {}),
]


@pytest.mark.parametrize("scheme", [("ms_poe", {}), ("dpe", {"groups": [3, 7, 2], "window": 6})], ids=lambda x: x[0])
@pytest.mark.parametrize("name", [*DECODERS, "gpt2"])
def test_token_by_token_and_padded(name: str, scheme: tuple[str, dict[str, Any]]) -> None:
    rotated = "rope+" if name == "gpt2" else ""
    model = patch_model(tiny(name), rotated + scheme[0], trained_length=16, **scheme[1])
    with torch.no_grad():
        whole, cache, pieces = model(IDS).logits, None, []
        for start, end in ((0, 30), (30, 37), *((n, n + 1) for n in range(37, 40))):
            out = model(IDS[:, start:end], past_key_values=cache, use_cache=True)
            cache, pieces = out.past_key_values, [*pieces, out.logits]
        assert (torch.cat(pieces, 1) - whole).abs().max() < 1e-4
        alone = model(IDS[:1, 11:]).logits[0]
        assert (model(IDS, attention_mask=PADDED).logits[0, 11:] - alone).abs().max() < 1e-4
        model.set_attn_implementation("eager")
        assert (model(IDS).logits - whole).abs().max() < 1e-4


@pytest.mark.parametrize(("one", "options", "two", "others"), SAME, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("name", [*DECODERS, "modernbert"])
def test_with_one_scale_it_is_another_scheme(
    name: str, one: str, options: dict[str, Any], two: str, others: dict[str, Any]
) -> None:
    masked = name == "modernbert"
    if masked and one == "dpe":
        with pytest.raises(SchemeNotDefined):
            patch_model(tiny(name, masked=True), one)
        return
    build = lambda: tiny(name, masked=masked)  # noqa: E731
    first = patch_model(build(), one, trained_length=16, target_length=20, **options)
    second = patch_model(build(), two, trained_length=16, **others)
    with torch.no_grad():
        assert (first(IDS).logits - second(IDS).logits).abs().max() < 1e-4
        if two != "rope":
            assert (first(IDS).logits - build()(IDS).logits).abs().max() > 0.01  # control


@pytest.mark.parametrize("scheme", [("ms_poe", {"order": [[3, 1, 0, 2]] * 4}), ("yarn+dpe", {"groups": [3, 7, 2]})])
def test_saved_and_loaded(scheme: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    model = patch_model(tiny("llama"), scheme[0], trained_length=32, factor=2, **scheme[1])
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(from_pretrained(tmp_path)(IDS).logits, model(IDS).logits)


def test_keys_are_repeated_for_every_query_head() -> None:
    model = patch_model(models.llama(), "ms_poe")
    with torch.no_grad():
        held = model(IDS % 90, use_cache=True).past_key_values.layers[0]
    assert held.keys.shape[1] == held.values.shape[1] == HEADS
    told = cache_under(scheme_of(model), Memory("float32", 0, 0, token=100, ram=None, gpu=None), 7)
    assert told == 7 * 100 * HEADS // models.KV_HEADS


def test_the_order_of_heads() -> None:
    """The last query of head 1 has one outlier of four keys, that of head 0 has none, and head 2 has two of eight."""
    even, one = torch.full((8,), 1 / 8), torch.tensor([0.86, *[0.02] * 7])
    weights = torch.stack((even, one, torch.tensor([0.44, 0.44, *[0.02] * 6])))[None, :, None]
    assert order_of([weights, weights.flip(1)], outlier=3) == [[2, 1, 0], [0, 1, 2]]


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("ms_poe", {"r_min": 0.5}),
        ("ms_poe", {"r_min": 2.0}),
        ("ms_poe", {"order": [0, 1, 2]}),
        ("ms_poe", {"order": [0, 1, 2, 2]}),
        ("ms_poe", {"order": [[0, 1, 2, 3]] * 3}),
        ("dpe", {"groups": [2, 0]}),
        ("dpe", {"groups": []}),
        ("dpe", {"groups": [2] * 9}),
        ("dpe", {"window": TRAINED}),
    ],
)
def test_options_out_of_range(scheme: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionOutOfRange):
        patch_model(models.llama(), scheme, factor=2, **options)


@pytest.mark.parametrize("scheme", ["self_extend+dpe", "ms_poe+rerope", "dynamic_ntk+ms_poe"])
def test_two_remaps_are_refused(scheme: str) -> None:
    with pytest.raises(CannotCombine):
        patch_model(models.llama(), scheme, factor=2)


def test_composed_with_a_temperature_rows_are_padded_as_alone() -> None:
    """Keys are repeated by the scheme, and not once more where a mask has the host repeat grouped ones."""
    model, other = (patch_model(tiny("llama"), name, trained_length=16, factor=2) for name in SWAPPED)
    with torch.no_grad():
        found = model(IDS, attention_mask=PADDED).logits
        assert (found[0, 11:] - model(IDS[:1, 11:]).logits[0]).abs().max() < 1e-4
        assert torch.equal(found, other(IDS, attention_mask=PADDED).logits)


SWAPPED = ("ms_poe+logn", "logn+ms_poe")


def test_no_ratio_is_the_model_itself() -> None:
    assert describe(patch_model(models.llama(), "ms_poe", r_min=1.0, r_max=1.0)).proof.verdict == "identity"
    assert describe(patch_model(models.llama(), "ms_poe")).proof.verdict == "moved"
