"""One token rotated in one operation, bit by bit as region by region; and what is not kept from call to call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from hf_posenc import patch_model
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes import regions_decode
from hf_posenc.cache.key_layout import unpack_keys
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Terms
from hf_posenc.forward.rotate_decode import DecodeRotation, NoRotation, decode_rotation
from hf_posenc.forward.rotate_qk import key_copies, region_rotations, rotate_regions
from hf_posenc.forward.shared_terms import FixedPart, fixed_part
from hf_posenc.schemes.base import Scheme

HEADS, KV_HEADS, DIM = 4, 2, 8
ROTATING = ("rope", "yarn", "partial", "longrope", "rerope", "leaky_rerope", "self_extend", "string", "dca", "sinks")


def scheme_of(name: str, **options: Any) -> Scheme:
    config = LlamaConfig(
        vocab_size=16, hidden_size=HEADS * DIM, intermediate_size=16, num_hidden_layers=1, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, max_position_embeddings=32,
    )  # fmt: skip
    return patch_model(LlamaForCausalLM(config).eval(), name, factor=4, **options).model.layers[0].self_attn.scheme


def fixed(scheme: Scheme) -> FixedPart:
    return fixed_part(scheme, True)


def at(position: int) -> PositionContext:
    places = torch.arange(position + 1)[None]
    return PositionContext(places[:, -1:], places, True, True, first=position)


def drawn(heads: int, length: int = 1, batch: int = 2) -> Tensor:
    return torch.randn(batch, heads, length, DIM, generator=torch.Generator().manual_seed(heads))


@pytest.mark.parametrize("name", ROTATING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits_as_region_by_region(name: str, dtype: torch.dtype) -> None:
    scheme = scheme_of(name)
    rotation = fixed(scheme).rotation
    assert isinstance(rotation, DecodeRotation)
    q, k, v = (drawn(heads).to(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS))
    for position in (3, 70, 40):
        queries, copies, values = rotation.at(position, q.device)(q, k, v)
        expected = rotate_regions(region_rotations(scheme, at(position)), q, k, v)
        assert all(torch.equal(one, two) for one, two in zip(queries, expected[0], strict=True))
        assert all(torch.equal(one, two) for one, two in zip(copies, expected[1], strict=True))
        assert values is v


def test_key_copies_are_those_of_the_regions() -> None:
    """A region's own rotation has a copy of its own, although it equals the scheme's."""
    shared = Rotation((1.0, 0.5))
    regions = (Region(Band(None, 2)), Region(Band(2, 4), rotation=shared), Region(Band(4, None), key_at=torch.neg))
    rotation = decode_rotation(regions, shared)
    assert isinstance(rotation, DecodeRotation)
    assert len(rotation.keys) == max(key_copies(regions)) + 1 == 3


@pytest.mark.parametrize("name", ["xpos", "rope_nd", "dynamic_ntk"])
def test_rotations_of_other_kinds_are_left_to_their_own(name: str) -> None:
    assert not isinstance(fixed(scheme_of(name)).rotation, DecodeRotation)


def test_a_bias_alone_rotates_nothing() -> None:
    rotation = fixed(scheme_of("alibi")).rotation
    assert rotation == NoRotation(1)
    q, k, v = (drawn(heads) for heads in (HEADS, KV_HEADS, KV_HEADS))
    assert rotation(q, k, v) == ((q,), (k,), v)


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
    found = fixed(ByPosition(scheme_of("rope"), hold=hold))
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
    assert fixed(WithSink(scheme_of("rope"))).terms is None


@pytest.mark.parametrize("name", ["alibi", "logn", "t5", "fox", "deberta", "xpos", "rope+rerope+alibi"])
def test_terms_of_one_call_are_not_kept(name: str) -> None:
    assert fixed(scheme_of(name)).terms is None


@pytest.mark.parametrize("batch", [1, 3])
def test_one_softmax_is_as_exact_as_the_kernels(batch: int) -> None:
    """Two regions, with query heads that share key heads, against float64; copies of keys as a cache holds them."""
    length, window, scale = 300, 40, DIM**-0.5
    terms = Terms(regions=(Region(Band(None, window)), Region(Band(window, None))), logit_scale=1.3)
    queries = drawn(HEADS, 1, batch), drawn(HEADS + 4, 1, batch)[:, :HEADS]
    copies, values = drawn(2 * KV_HEADS, length, batch), drawn(6, 3 * length, batch)[:, :KV_HEADS, :length].contiguous()
    one_copy = torch.empty(batch, KV_HEADS, 0, DIM)
    keys, _ = unpack_keys(copies, (one_copy, one_copy), None)
    call = AttentionCall(queries, keys, values, terms, at(length - 1), None, scale)
    parts = [
        (query.double().unflatten(1, (KV_HEADS, -1))[:, :, :, 0] @ key.double().mT) * scale * 1.3
        for query, key in zip(queries, keys, strict=True)
    ]
    far = length - window
    weights = torch.cat((parts[1][..., :far], parts[0][..., far:]), dim=-1).softmax(-1)
    expected = (weights @ values.double()).flatten(1, 2)[:, :, None]
    with torch.no_grad():
        compute, seen = regions_decode.prepare(call), regions_decode.visible_keys(call)
        kernels = regions_decode._by_kernel(seen, 1.3, call)
    assert compute.func is regions_decode._by_product  # type: ignore[attr-defined]
    assert [number for number, _ in seen] == [1, 0]
    one, other = (float((x.double() - expected).abs().max() / expected.abs().max()) for x in (compute(call), kernels))
    assert one < 2e-6
    assert other < 2e-6
