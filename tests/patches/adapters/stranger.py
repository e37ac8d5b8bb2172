"""A new decoder with unusual names, and its adapter, written by following docs/add-model.md."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from hf_posenc.extend import Adapter, DisabledRotary, Geometry, HostRotary, PatchedAttention, Rotation, geometric

CONTEXT = 32


class TinyConfig(PreTrainedConfig):
    model_type = "tiny_stranger"

    def __init__(self, dim: int = 32, n_heads: int = 4, n_blocks: int = 2, context: int = CONTEXT, **more: Any) -> None:
        self.dim, self.n_heads, self.n_blocks, self.context = dim, n_heads, n_blocks, context
        super().__init__(**more)


class TinyRotary(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        rates = torch.tensor(geometric(10_000.0, self.channels))
        angles = (positions[..., None].double() * rates).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-b, a), dim=-1) * sin[:, None]


def eager(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scaling: float, **_: Any) -> Any:
    scores = q @ k.transpose(-1, -2) * scaling
    return ((scores if mask is None else scores + mask).softmax(-1) @ v).transpose(1, 2), None


class TinyAttention(nn.Module):
    is_causal = True

    def __init__(self, config: TinyConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.channels = config.dim // config.n_heads
        self.scaling = self.channels**-0.5
        self.attention_dropout = 0.0
        self.query, self.key, self.value, self.out = (nn.Linear(config.dim, config.dim, bias=False) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.channels)).transpose(-3, -2)

    def forward(self, x: Tensor, mask: Tensor | None, cos_sin: Any, **_: Any) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.query, self.key, self.value))
        mixed, _ = eager(self, rotated(q, *cos_sin), rotated(k, *cos_sin), v, mask, scaling=self.scaling)
        return self.out(mixed.flatten(2))


class TinyBlock(nn.Module):
    def __init__(self, config: TinyConfig, number: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(config.dim), TinyAttention(config, number)
        self.feed = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor, mask: Tensor | None, cos_sin: Any, **call: Any) -> Tensor:
        x = x + self.attention(self.norm(x), mask, cos_sin, **call)
        return x + self.feed(x).relu()


class TinyModel(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(100, config.dim)
        self.blocks = nn.ModuleList(TinyBlock(config, number) for number in range(config.n_blocks))
        self.rotary = TinyRotary(config.dim // config.n_heads)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None, **call
    ) -> BaseModelOutputWithPast:  # fmt: skip
        x = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        positions = torch.arange(x.shape[1])[None] if position_ids is None else position_ids
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        mask = torch.full((x.shape[1], past + x.shape[1]), torch.finfo(x.dtype).min).triu(past + 1)[None, None]
        for block in self.blocks:
            x = block(
                x, mask, self.rotary(x, positions), position_ids=positions, past_key_values=past_key_values, **call
            )
        return BaseModelOutputWithPast(last_hidden_state=x, past_key_values=past_key_values)


class PatchedTinyAttention(PatchedAttention, TinyAttention):
    host_eager = staticmethod(eager)

    def project_query(self, x: Tensor) -> Tensor:
        return self.split(self.query(x))

    def project_key(self, x: Tensor) -> Tensor:
        return self.split(self.key(x))

    def forward(self, x, mask, cos_sin, past_key_values=None, **call):
        q, k, v = (self.split(project(x)) for project in (self.query, self.key, self.value))
        mixed, _ = self.attend(q, k, v, hidden=x, cache=past_key_values, mask=mask, host=call)
        return self.out(mixed.flatten(2))


class DisabledTinyRotary(DisabledRotary, TinyRotary):
    pass


class TinyAdapter(Adapter):
    attention: ClassVar = {TinyAttention: PatchedTinyAttention}
    base_class = TinyModel

    def trained_length(self, config):
        return config.context

    def geometry(self, config, *, trained_length, target_length):
        channels = config.dim // config.n_heads
        return Geometry(
            heads=config.n_heads, kv_heads=config.n_heads, head_dim=channels, width=config.dim, layers=config.n_blocks,
            causal=True, trained_length=trained_length, target_length=target_length,
            rotary=HostRotary(Rotation(geometric(10_000.0, channels)), 10_000.0),
        )  # fmt: skip

    def swaps(self, base, scheme):
        yield base.rotary, DisabledTinyRotary

    def probe(self, base, hidden, positions, layer):
        block = base.blocks[layer]
        length = hidden.shape[1]
        mask = torch.full((length, length), torch.finfo(hidden.dtype).min, dtype=hidden.dtype).triu(1)[None, None]
        cos_sin = TinyRotary.forward(base.rotary, hidden, positions)
        return block.attention(block.norm(hidden), mask, cos_sin, position_ids=positions)
