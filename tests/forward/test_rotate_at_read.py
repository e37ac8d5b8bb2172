"""One cached copy of each key: what attention computes, what a cache holds, what is refused; one token at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache

from hf_posenc import patch_model
from hf_posenc.checks import CHECKS, Case, assert_passes
from hf_posenc.checks.tiny_models import HEADS, KV_HEADS, TRAINED_LENGTH, WIDTH, tiny_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Terms
from hf_posenc.errors import CannotCombine, InvalidInput, OptionOutOfRange, UnknownKeys
from hf_posenc.forward import rotate_decode
from hf_posenc.forward.rotate_decode import DecodeRotation
from hf_posenc.forward.rotate_qk import region_rotations, rotate_regions
from hf_posenc.forward.shared_terms import SchemeTraits, scheme_traits
from hf_posenc.forward.split_terms import SplitTerms
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.build import check_one_key
from hf_posenc.schemes.remap.rerope import ReRoPE

from ..oracles import models, naive

SCHEMES = ["rerope", "leaky_rerope", "self_extend", "lm_infinite"]
LENGTH = 3 * TRAINED_LENGTH
LIMIT = 2e-5  # logits of deviation 1, in float32; measured up to 5e-6


def patched(scheme: str, copies: str, model: str = "llama", **more: Any) -> PreTrainedModel:
    options = {"factor": 4, "key_cache": copies, **more}
    torch.manual_seed(0)  # of learned parameters
    return patch_model(tiny_model(model), scheme, **options)


def text(rows: int = 1, length: int = LENGTH) -> Tensor:
    return torch.randint(3, 90, (rows, length), generator=torch.Generator().manual_seed(5))


def in_chunks(model: PreTrainedModel, ids: Tensor, sizes: list[int]) -> Tensor:
    """Logits of a text that is read piece by piece, then token by token."""
    cache = DynamicCache(config=model.config)
    parts = ids.split([*sizes, *[1] * (ids.shape[1] - sum(sizes))], dim=1)
    return torch.cat([model(part, past_key_values=cache).logits for part in parts], dim=1)


CACHE_CHECKS = (
    *("cache", "padded_decoding", "position_ids", "cache_reorder", "cache_crop", "generate", "formula_gradients"),
)


def test_tokens_decoded_in_half_precision() -> None:
    assert_passes("cache", Case("llama", "dynamic_ntk", factor=4, dtype=torch.bfloat16))


@pytest.mark.slow
@pytest.mark.parametrize("check", CACHE_CHECKS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_check_of_caches_passes(scheme: str, check: str) -> None:
    case = Case("llama", scheme, factor=4, key_cache="one")
    assert_passes(check, case)
    if check in ("cache", "padded_decoding", "position_ids", "cache_reorder"):
        assert not CHECKS[check](case, cache=StaticCache).failed


@torch.no_grad()
def test_control_another_offset_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = rotate_decode.table
    copies = in_chunks(patched("rerope", "copies"), text(3), [40, 9])
    monkeypatch.setattr(rotate_decode, "table", lambda rotation, positions: table(rotation, positions + 1))
    assert (in_chunks(patched("rerope", "one"), text(3), [40, 9]) - copies).abs().max() > 1000 * LIMIT


@pytest.mark.parametrize("sizes", [[1], [50, 13]])
@torch.no_grad()
def test_as_the_formula_in_float64(sizes: list[int]) -> None:
    """ReRoPE: distances clipped to the window, over all pairs."""
    ids = models.text(4 * models.TRAINED)
    pairs = naive.causal(len(ids))
    clipped = replace(
        pairs, distance=pairs.distance.clamp(max=models.TRAINED // 2), frequencies=naive.rope(models.HEAD_DIM)
    )
    expected = naive.llama(models.llama(), ids, clipped)
    model = patch_model(models.llama(), "rerope", factor=4, key_cache="one")
    assert (in_chunks(model, ids[None], sizes)[0].double() - expected).abs().max() < 1e-4
    other = replace(clipped, distance=pairs.distance.clamp(max=models.TRAINED // 2 + 1))  # control
    assert (naive.llama(models.llama(), ids, other) - expected).abs().max() > 0.1


def numbers_a_token(model: PreTrainedModel) -> float:
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(text(length=20), past_key_values=cache)
    return sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers) / 20


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_cache_is_as_large_as_the_unpatched_models(scheme: str) -> None:
    plain = numbers_a_token(tiny_model("llama"))
    assert numbers_a_token(patched(scheme, "one")) == plain
    assert numbers_a_token(patched(scheme, "copies")) == 1.5 * plain  # control


REFUSED = {
    "an encoder": ("bert", "rope+rerope", OptionOutOfRange, "an encoder has no KV cache"),
    "nothing rotated": ("gpt2", "alibi+lm_infinite", CannotCombine, "rotates nothing"),
}


@torch.no_grad()
def test_keys_of_unknown_origin_are_refused() -> None:
    """PEFT's prefix tuning puts some into an empty cache; a copy for each region needs no rotation when it is read."""

    def with_prefix(copies: str) -> Tensor:
        model, keys = patched("rerope", copies), torch.zeros(1, KV_HEADS, 3, WIDTH // HEADS)
        cache = DynamicCache(config=model.config)
        for layer in range(model.config.num_hidden_layers):
            cache.update(keys, keys, layer)
        return model(text(length=5), past_key_values=cache).logits

    with pytest.raises(InvalidInput, match="3 tokens that this model has not put there"):
        with_prefix("one")
    with pytest.warns(UnknownKeys):
        assert with_prefix("copies").isfinite().all()


@pytest.mark.parametrize("what", REFUSED)
def test_refused_where_it_has_no_effect_or_no_rotation_leads_to_the_other_copies(what: str) -> None:
    model, scheme, error, reason = REFUSED[what]
    with pytest.raises(error, match=reason):
        patched(scheme, "one", model)
    patched(scheme, "copies", model)  # control


class Rotating(ReRoPE):
    """ReRoPE with a rotation of its own."""

    def __init__(self, rotation: Rotation, of_far_keys: Rotation | None = None) -> None:
        super().__init__(models.geometry(), key_cache="one")
        self.own, self.of_far_keys = rotation, of_far_keys

    def rotation(self) -> Rotation:
        return self.own

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        near, far = super().regions(ctx)
        return near, replace(far, rotation=self.of_far_keys)


PLAIN = Rotation((1.0, 0.5))
OTHERS = {
    "trained": (replace(PLAIN, frequencies=torch.ones(2)), None),
    "scales keys": (replace(PLAIN, decay=(0.1, 0.2)), None),
    "several axes": (replace(PLAIN, axes=(0, 1)), None),
    "region to region": (PLAIN, Rotation((1.0, 0.25))),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_rotations_that_do_not_compose_are_refused(reason: str) -> None:
    with pytest.raises(CannotCombine, match=reason):
        check_one_key(Rotating(*OTHERS[reason]))
    check_one_key(Rotating(PLAIN))  # control


DIM = WIDTH // HEADS
ROTATING = ("rope", "yarn", "partial", "longrope", "rerope", "leaky_rerope", "self_extend", "string", "dca", "sinks")


def scheme_of(name: str, **options: Any) -> Scheme:
    return patch_model(tiny_model("llama"), name, factor=4, **options).model.layers[0].self_attn.scheme


def traits(scheme: Scheme) -> SchemeTraits:
    return scheme_traits(scheme, True)


def at(position: int) -> PositionContext:
    places = torch.arange(position + 1)[None]
    return PositionContext(places[:, -1:], places, True, True, first=position)


def drawn(heads: int, length: int = 1, batch: int = 2) -> Tensor:
    return torch.randn(batch, heads, length, DIM, generator=torch.Generator().manual_seed(heads))


@pytest.mark.parametrize("name", ROTATING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits_as_region_by_region(name: str, dtype: torch.dtype) -> None:
    scheme = scheme_of(name)
    rotation = traits(scheme).rotation
    assert isinstance(rotation, DecodeRotation)
    q, k, v = (drawn(heads).to(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS))
    for position in (3, 70, 40):
        queries, copies, values = rotation.at(position, q.device)(q, k, v)
        expected = rotate_regions(region_rotations(scheme, at(position)), q, k, v)
        assert all(torch.equal(one, two) for one, two in zip(queries, expected[0], strict=True))
        assert all(torch.equal(one, two) for one, two in zip(copies, expected[1], strict=True))
        assert values is v


class ByPosition(Scheme):
    """Regions that depend on the positions of a call, or hold them."""

    def __init__(self, scheme: Scheme, *, hold: bool) -> None:
        super().__init__(scheme.geometry)
        self.record, self.hold = scheme.record, hold  # type: ignore[misc]

    def rotation(self) -> Rotation:
        return Rotation((1.0, 0.5))

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        if self.hold:
            return (Region(query_at=lambda positions: positions - ctx.first),)
        return (Region(Band(None, int(ctx.key_positions[0, -1]))),)


@pytest.mark.parametrize("hold", [True, False])
def test_regions_of_one_call_are_not_kept(hold: bool) -> None:
    found = traits(ByPosition(scheme_of("rope"), hold=hold))
    assert found.terms is None
    assert found.rotation is None


class WithSink(Scheme):
    """A sink's logits as a buffer, which moves with the model."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme.geometry)
        self.record = scheme.record  # type: ignore[misc]
        self.register_buffer("logits", torch.zeros(HEADS))

    def sink(self) -> Tensor:
        return self.logits


def test_tensors_are_not_kept() -> None:
    assert traits(WithSink(scheme_of("rope"))).terms is None


@pytest.mark.parametrize("name", ["alibi", "logn", "t5", "fox", "deberta", "xpos", "rope+rerope+alibi"])
def test_terms_of_one_call_are_not_kept(name: str) -> None:
    assert traits(scheme_of(name)).terms is None


def test_a_single_region_reads_its_own_copy_of_several() -> None:
    """Two copies of the keys, of which the terms of this call read one: still a tuple with one entry for the region."""
    split = SplitTerms(Terms(regions=(Region(Band()),)), None, (0,), False)
    first, second = torch.zeros(1), torch.ones(1)
    (chosen,) = split.keys_by_region((first, second))
    assert chosen is first
    assert split.keys_by_region((second,)) == (second,)
