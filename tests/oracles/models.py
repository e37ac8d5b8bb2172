"""Small random models with sharp attention: with the usual initial weights all schemes give nearly equal outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from hf_posenc.core.geometry import Geometry, HostRotary, Rotation, geometric

from . import naive

TRAINED = 32
WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 64, 4, 2, 16, 97


def llama(seed: int = 0, **config: Any) -> LlamaForCausalLM:
    """Two layers, grouped heads, trained length `TRAINED_LENGTH`."""
    torch.manual_seed(seed)
    shape = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    shape |= {"num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": TRAINED}
    return sharpened(LlamaForCausalLM(LlamaConfig(**(shape | config))))


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    """Two layers, a table of `TRAINED_LENGTH` rows."""
    torch.manual_seed(seed)
    config = GPT2Config(n_embd=WIDTH, n_layer=2, n_head=HEADS, vocab_size=VOCABULARY, n_positions=TRAINED,
                        bos_token_id=0, eos_token_id=0)  # fmt: skip
    return sharpened(GPT2LMHeadModel(config))


def bert(seed: int = 0) -> BertForMaskedLM:
    """Two layers, a table of `TRAINED_LENGTH` rows."""
    torch.manual_seed(seed)
    config = BertConfig(hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=2, num_attention_heads=HEADS,
                        vocab_size=VOCABULARY, max_position_embeddings=TRAINED)  # fmt: skip
    return sharpened(BertForMaskedLM(config))


MODELS: dict[str, tuple[Callable[[], Any], naive.Whole]] = {
    "llama": (llama, naive.llama),
    "gpt2": (gpt2, naive.gpt2),
    "bert": (bert, naive.bert),
}
QUERY_KEY = ("q_proj", "k_proj", "self.query", "self.key")


def sharpened(model: nn.Module) -> Any:
    """The model with new weights: attention scores have a standard deviation of about 3, and logits of about 1."""
    sharp, unit = math.sqrt(3 / WIDTH), 1 / math.sqrt(WIDTH)
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            continue
        if name.endswith("c_attn.weight"):
            nn.init.normal_(weight, std=unit)
            nn.init.normal_(weight.data[:, : 2 * WIDTH], std=sharp)
        elif any(part in name for part in QUERY_KEY):
            nn.init.normal_(weight, std=sharp)
        else:
            nn.init.normal_(weight, std=unit)
    return model.eval()


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Reorder W_q or W_k from the half layout (pairs m, m + d/2) to the interleaved layout (neighbouring pairs)."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def text(length: int, seed: int = 1) -> Tensor:
    """Random token ids ``[length]``."""
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))


def logits(model: Any, ids: Tensor) -> Tensor:
    """Logits of one text ``[L]``, ``[L, vocabulary]``, float64."""
    with torch.no_grad():
        return model(ids[None]).logits[0].double()


@torch.no_grad()
def in_pieces(model: Any, ids: Tensor, *borders: int) -> Tensor:
    """Logits of texts ``[rows, L]`` that are read up to each border, then token by token, with a growing cache."""
    cache, pieces, start = None, [], 0
    for end in (*borders, *range(borders[-1] + 1, ids.shape[1] + 1)):
        out = model(ids[:, start:end], past_key_values=cache, use_cache=True)
        cache, start = out.past_key_values, end
        pieces.append(out.logits)
    return torch.cat(pieces, dim=1)


def with_gradient(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of one text, and the gradient of their mean square with respect to its embeddings."""
    embedded = model.get_input_embeddings()(ids).detach()[None].requires_grad_()
    logits = model(inputs_embeds=embedded).logits[0]
    logits.square().mean().backward()
    return logits.detach(), embedded.grad[0].double()


def dense_with_gradient(name: str, model: Any, ids: Tensor, text: naive.Positions) -> tuple[Tensor, Tensor]:
    """Results as in `with_gradient`, for an unpatched model, from the definition."""
    code = torch.zeros(len(ids), WIDTH, dtype=torch.float64, requires_grad=True)
    logits = MODELS[name][1].__wrapped__(model, ids, replace(text, code=code))  # type: ignore[attr-defined]
    logits.square().mean().backward()
    return logits.detach(), code.grad


def geometry(
    *,
    head_dim: int = HEAD_DIM,
    heads: int = HEADS,
    width: int = WIDTH,
    trained: int = TRAINED,
    target: int | None = None,
    base: float | None = 10_000.0,
    causal: bool = True,
    table: int | None = None,
) -> Geometry:
    """A geometry without a model; ``base=None`` is a model that does not rotate."""
    rotary = None if base is None else HostRotary(Rotation(geometric(base, head_dim)), base)
    return Geometry(
        heads=heads, kv_heads=heads, head_dim=head_dim, width=width, layers=2, causal=causal,
        trained_length=trained, target_length=target or trained, rotary=rotary, table=table,
    )  # fmt: skip
