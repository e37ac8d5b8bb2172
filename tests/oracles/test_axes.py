"""Rotations of several coordinates: Qwen2-VL's, grids, and images in BERT."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2VLTextConfig, Qwen3VLTextConfig
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import (
    Qwen2VLRotaryEmbedding,
    Qwen2VLVisionRotaryEmbedding,
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_vision,
)
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from hf_posenc import patch_model
from hf_posenc.core.rotation import rotate, table
from hf_posenc.schemes.rotary.mrope import MRoPE
from hf_posenc.schemes.rotary.rope_nd import AxialRoPE

from . import models, naive
from .models import HEAD_DIM
from .naive import rope

LIMIT = 1e-4  # logits of deviation 1 in float32 behind two layers of sharp softmax


@dataclass(frozen=True)
class AxialPositions(naive.Positions):
    """Pair m of a token turns by ``frequencies[m] · places[token, axes[m]]``."""

    coordinates: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    axes: tuple[int, ...] = ()

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        angles = self.coordinates.double()[:, list(self.axes)] * self.frequencies
        rotation = torch.polar(torch.ones_like(angles), angles)
        q, k = naive.as_complex(query) * rotation, naive.as_complex(key) * rotation
        return torch.einsum("him,hjm->hij", q, k.conj()).real


def film(length: int) -> Tensor:
    """Text, then a film of two frames of 2 × 3, then text: coordinates ``[3, 1, length]``."""
    frames = [(t + 5, h + 5, w + 5) for t in range(2) for h in range(2) for w in range(3)]
    coordinates = [(p, p, p) for p in range(5)] + frames
    coordinates += [(p + 8, p + 8, p + 8) for p in range(length - len(coordinates))]
    return torch.tensor(coordinates).T[:, None]


def vectors(length: int, head_dim: int) -> Tensor:
    return torch.randn(1, 2, length, head_dim, generator=torch.Generator().manual_seed(0))


def qwen(kind: type[Any], embedding: type[Any], head_dim: int, section: tuple[int, ...]) -> Any:
    scaling = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(section)}
    return embedding(kind(hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, rope_parameters=scaling))


@pytest.mark.parametrize("head_dim", [16, 32, 128])
@pytest.mark.parametrize("interleaved", [False, True])
def test_mrope_equals_qwen(head_dim: int, interleaved: bool) -> None:
    """Qwen2-VL's sections one after another, Qwen3-VL's interleaved, at the defaults and at others."""
    old, new = (Qwen2VLTextConfig, Qwen2VLRotaryEmbedding), (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding)
    geometry, coordinates, x = models.geometry(head_dim=head_dim), film(30), vectors(30, head_dim)
    half = head_dim // 2
    for section in (None, (half - 2 * (half // 4), half // 4, half // 4), (half - half // 4, half // 4, 0)):
        scheme = MRoPE(geometry, section=section, interleaved=interleaved)
        cos, sin = qwen(*(new if interleaved else old), head_dim, scheme.section)(x, coordinates)
        theirs, _ = apply_rotary_pos_emb(x, x, cos, sin)
        rotation = table(scheme.rotation(), scheme.coordinates(coordinates[0], coordinates.movedim(0, -1)))
        assert (rotate(x, scheme.rotation(), rotation) - theirs).abs().max() < 1e-5  # their angles are float32
        plain = table(scheme.rotation(), scheme.coordinates(coordinates[0], None))
        assert (rotate(x, scheme.rotation(), plain) - theirs).abs().max() > 1e-3  # control: read as text


def test_axial_equals_qwen2_vl_vision() -> None:
    """Height and width, each with the frequencies of half a head, in the half layout."""
    head_dim, base = 16, 10_000.0
    scaling = {"rope_type": "axial", "rope_theta": base}
    config = Qwen2VLVisionConfig(embed_dim=2 * head_dim, num_heads=2, rope_parameters=scaling)
    config.head_dim = head_dim
    coordinates = torch.stack((torch.arange(12) // 4, torch.arange(12) % 4))  # [axes, token]
    x = vectors(12, head_dim)
    cos, sin = Qwen2VLVisionRotaryEmbedding(config)(x, coordinates.T)
    theirs, _ = apply_rotary_pos_emb_vision(x[0].transpose(0, 1), x[0].transpose(0, 1), cos, sin)
    scheme = AxialRoPE(models.geometry(head_dim=head_dim), base=base, grid=[3, 4])
    rotation = table(scheme.rotation(), scheme.coordinates(torch.arange(12)[None], None))
    assert (rotate(x, scheme.rotation(), rotation)[0].transpose(0, 1) - theirs).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("grid", "position", "coordinate"),
    [([3, 4], 7, [1, 3]), ([3, 4], 13, [3, 1]), ([2, 3, 5], 29, [1, 2, 4]), ([9], 11, [11])],
)
def test_grids_are_flattened_row_by_row(grid: list[int], position: int, coordinate: list[int]) -> None:
    scheme = AxialRoPE(models.geometry(), axes=len(grid), grid=grid)
    assert scheme.coordinates(torch.tensor([[position]]), None).tolist() == [[coordinate]]


def test_bert_with_axial_positions_of_an_image() -> None:
    """Patches as ``inputs_embeds``; grid coordinates by the scheme or by the caller; against the formula."""
    height, width = 5, 6
    bert = models.bert()
    ids = models.text(height * width)  # each token's embedding stands for the embedding of a patch
    patches = bert.bert.embeddings.word_embeddings(ids)[None].detach()
    coordinates = torch.tensor([(h, w) for h in range(height) for w in range(width)])
    frequencies = torch.cat((rope(HEAD_DIM // 2, 100.0),) * 2)
    free, axes = naive.both_ways(len(ids)), (0,) * 4 + (1,) * 4
    image = AxialPositions(free.seen, free.distance, frequencies, coordinates=coordinates, axes=axes)
    expected = naive.bert(models.bert(), ids, image)
    patched = patch_model(bert, "rope_nd", grid=[height, width])
    with torch.no_grad():
        by_grid = patched(inputs_embeds=patches).logits[0].double()
        by_caller = patched(inputs_embeds=patches, position_ids=coordinates.T[:, None]).logits[0].double()
        shuffled = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
        moved = coordinates[shuffled].T[:, None]
        in_any_order = patched(inputs_embeds=patches[:, shuffled], position_ids=moved).logits[0].double()
        line = torch.stack((torch.zeros(30), torch.arange(30)))[:, None]
        as_a_line = patched(inputs_embeds=patches, position_ids=line).logits[0].double()
    assert (by_grid - expected).abs().max() <= LIMIT
    assert (by_caller - expected).abs().max() <= LIMIT
    assert (in_any_order - expected[shuffled]).abs().max() <= LIMIT
    assert (as_a_line - expected).abs().max() > 100 * LIMIT  # control
