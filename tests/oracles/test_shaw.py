"""Shaw's vectors against wav2vec2-bert, seamless-m4t and the einsum over a vector for every pair."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, SeamlessM4Tv2Config, Wav2Vec2BertConfig
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2ConformerSelfAttention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from hf_posenc import patch_model
from hf_posenc.schemes.content.shaw import Shaw
from hf_posenc.schemes.weights import TableWeights

from . import content, models, naive
from .models import HEADS, TRAINED, WIDTH
from .naive import Positions

LENGTH = 3 * TRAINED
LIMIT = 1e-4
FARTHEST = 9


def vectors(table: TableWeights, distance: Tensor) -> Tensor:
    """A vector for every pair, ``[L, L, head_dim]``: row clip(j − i, −K, K) + K."""
    farthest = (len(table.weight) - 1) // 2
    return table.weight.detach().double()[(-distance).clamp(-farthest, farthest) + farthest]


@dataclass(frozen=True)
class Pairwise(Positions):
    """A text whose layers add vectors of pairs to keys and values."""

    layers: Iterator[Shaw] = field(default_factory=lambda: iter(()))

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of one text in the next layer."""
        scheme, groups = next(self.layers), query.shape[0] // key.shape[0]
        key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
        of_key = vectors(scheme.of_key, self.distance)
        logits = torch.einsum("hid,hijd->hij", query, key[:, None] + of_key)
        if scheme.key_query:
            logits = logits + torch.einsum("hjd,ijd->hij", key, of_key)
        weights = (logits / math.sqrt(query.shape[-1])).masked_fill(~self.seen, -math.inf).softmax(-1)
        values = value[:, None].expand(-1, len(weights[0]), -1, -1)
        if scheme.of_value is not None:
            values = values + vectors(scheme.of_value, self.distance)
        return torch.einsum("hij,hijd->hid", weights, values).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("model", models.MODELS)
@pytest.mark.parametrize(
    "options", [{}, {"values": True}, {"key_query": True}, {"values": True, "key_query": True}], ids=str
)
def test_whole_models(model: str, options: dict[str, Any]) -> None:
    build, formula = models.MODELS[model]
    ids, text = models.text(LENGTH), naive.free(model, LENGTH)
    patched = patch_model(build(), "shaw", max_distance=FARTHEST, target_length=LENGTH, **options)
    schemes = [content.drawn(m, seed) for seed, m in enumerate(m for m in patched.modules() if isinstance(m, Shaw))]
    assert len(schemes) == 2

    def logits(layers: list[Shaw], distance: Tensor) -> Tensor:
        return formula(build(), ids, Pairwise(text.seen, distance, layers=iter(layers)))

    expected = logits(schemes, text.distance)
    assert (models.logits(patched, ids) - expected).abs().max() <= LIMIT
    assert (logits(schemes[::-1], text.distance) - expected).abs().max() > 100 * LIMIT  # control: one a layer
    if model == "bert":
        assert (logits(schemes, -text.distance) - expected).abs().max() > 100 * LIMIT  # control: the other sign


THEIRS = [
    pytest.param(Wav2Vec2BertSelfAttention, Wav2Vec2BertConfig, "position_embeddings_type", id="wav2vec2-bert"),
    pytest.param(
        SeamlessM4Tv2ConformerSelfAttention, SeamlessM4Tv2Config, "position_embeddings_type", id="seamless-m4t-v2"
    ),
]


@pytest.mark.parametrize(("attention", "config", "kind"), THEIRS)
@torch.no_grad()
def test_attention_of_transformers(attention: type[nn.Module], config: type, kind: str) -> None:
    """BERT's attention with Shaw's keys and theirs, same weights, same input, past the clip on either side."""
    torch.manual_seed(0)
    reach = {"left_max_position_embeddings": FARTHEST, "right_max_position_embeddings": FARTHEST}
    shape = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "speech_encoder_attention_heads": HEADS}
    shape |= {"attention_dropout": 0.0, "attn_implementation": "eager"}
    settings = config(**(shape | reach | {kind: "relative_key"}))
    theirs = attention(settings).eval()
    nn.init.eye_(theirs.linear_out.weight)
    nn.init.zeros_(theirs.linear_out.bias)
    for linear in (theirs.linear_q, theirs.linear_k):
        nn.init.normal_(linear.weight, std=math.sqrt(3 / WIDTH))
    nn.init.normal_(theirs.distance_embedding.weight)
    bert = BertModel(BertConfig(hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=1,
                                intermediate_size=8, vocab_size=models.VOCABULARY))  # fmt: skip
    patched = patch_model(bert.eval(), "shaw", max_distance=FARTHEST)
    ours = patched.encoder.layer[0].attention.self
    for name, linear in (("query", theirs.linear_q), ("key", theirs.linear_k), ("value", theirs.linear_v)):
        getattr(ours, name).load_state_dict(linear.state_dict())
    ours.scheme.of_key.weight.copy_(theirs.distance_embedding.weight)
    read, mixed = [], []

    def listen(module: nn.Module, args: tuple, out: tuple) -> None:
        read.append(args[0])
        mixed.append(out[0])

    ours.register_forward_hook(listen)
    patched(models.text(60)[None])
    expected = theirs(read[0])[0]
    assert (mixed[0] - expected).abs().max() <= 1e-5
    theirs.distance_embedding.weight.copy_(theirs.distance_embedding.weight.flip(0))  # control: the other sign
    assert (theirs(read[0])[0] - expected).abs().max() > 1e-2
