"""Starting weights of the laboratory models: an induction circuit, which minutes of training are too short to find.

layer 0       the first three heads read the token before            x_t + P x_{t−1}
layers 1, 2   the last three heads look for it and copy what came    q = U x_t,  k = U Pᵀ x_s,  output V Vᵀ x_s

The matrices are random orthogonal ones, as in mimetic initialisation (Trockman, Kolter 2023, arXiv:2305.09828); the
circuit is that of Olsson et al. 2022, arXiv:2209.11895. How the first heads find the token before depends on the
scheme, so it is fitted: a few seconds of regression of the first layer's queries, keys and positional parameters, on
random tokens. From the same seed, all else is equal for every scheme.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

EMBEDDING_SCALE = 0.1
CONSTANT_SHARE = 0.7
"""Norm of the direction that all embeddings share, which queries by position alone need, in those of the embeddings."""
SHARPNESS = 4.0
"""Scale of the matching heads' queries times that of their keys."""
COPIED = 0.5
"""Scale of what they write."""
FITTED, ROUNDS = 0.25, 6
"""The fit ends where it misses less than this share of the token before, and after so many rounds."""


def start_from_induction(model: LlamaForCausalLM, seed: int) -> float:
    """Write the circuit; returns the share of the previous token that the first layer misses after the fit.

    It stays at 0.2 at the least, because the other heads are random; without positions a first layer finds nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    width = model.config.hidden_size
    shared = torch.randn(width, generator=generator)
    shared /= shared.norm()
    without_shared = torch.eye(width) - torch.outer(shared, shared)
    previous = orthogonal(width, generator)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding.copy_(EMBEDDING_SCALE * torch.randn(embedding.shape, generator=generator))
        embedding.copy_(embedding @ without_shared + EMBEDDING_SCALE * CONSTANT_SHARE * width**0.5 * shared)
        write_previous(model.model.layers[0].self_attn, previous, without_shared, generator)
        for layer in model.model.layers[1:3]:
            write_matching(layer.self_attn, previous, without_shared, generator)
    for _ in range(ROUNDS):
        missed = fit_previous(model, generator)
        if missed < FITTED:
            break
    return missed


def orthogonal(size: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=generator))[0]


def write_previous(attention: nn.Module, previous: Tensor, without_shared: Tensor, generator: torch.Generator) -> None:
    """The first half of the heads moves what they attend to into the directions ``previous``.

    Queries and keys start opposed, so that a token is not its own best match.
    """
    half = len(previous) // 2
    values, queries = orthogonal(len(previous), generator)[:half], orthogonal(len(previous), generator)[:half]
    attention.v_proj.weight[:half] = values @ without_shared
    attention.o_proj.weight[:, :half] = EMBEDDING_SCALE * previous @ values.T
    attention.q_proj.weight[:half] = 0.5 * queries @ without_shared
    attention.k_proj.weight[:half] = -0.5 * queries @ without_shared


def write_matching(attention: nn.Module, previous: Tensor, without_shared: Tensor, generator: torch.Generator) -> None:
    """The last half of the heads attends to what came after earlier occurrences of a token, and copies it."""
    half = len(previous) // 2
    match, values = orthogonal(len(previous), generator)[half:], orthogonal(len(previous), generator)[half:]
    attention.q_proj.weight[half:] = SHARPNESS**0.5 * match @ without_shared
    attention.k_proj.weight[half:] = SHARPNESS**0.5 * match @ previous.T
    attention.v_proj.weight[half:] = values @ without_shared
    attention.o_proj.weight[:, half:] = COPIED * values.T


def fit_previous(model: LlamaForCausalLM, generator: torch.Generator, steps: int = 150) -> float:
    """Regress the first layer's attention on the token before."""
    layer, shared = model.model.layers[0], getattr(model.model, "posenc", None)
    attention = layer.self_attn
    fitted = [p for n, p in attention.named_parameters() if not n.startswith(("v_proj", "o_proj"))]
    fitted += [] if shared is None else list(shared.parameters())
    optimizer = torch.optim.Adam(fitted, lr=5e-3)
    written: list[Tensor] = []
    hooks = [
        attention.register_forward_hook(lambda module, inputs, output: written.append(output[0])),
        layer.post_attention_layernorm.register_forward_pre_hook(stop),
    ]
    half = model.config.hidden_size // 2
    moved = (attention.o_proj.weight[:, :half] @ attention.v_proj.weight[:half]).detach().T
    missed = torch.tensor(1.0)
    for _ in range(steps):
        ids = torch.randint(2, model.config.vocab_size, (8, 64), generator=generator)
        try:
            model(input_ids=ids, use_cache=False)
        except Enough:
            wanted = (layer.input_layernorm(model.model.embed_tokens(ids)) @ moved).detach()[:, :-1]
            missed = (written.pop()[:, 1:] - wanted).pow(2).mean() / wanted.pow(2).mean()
        missed.backward()
        optimizer.step()
        optimizer.zero_grad()
    for hook in hooks:
        hook.remove()
    model.zero_grad()
    return missed.item()


class Enough(Exception):
    """The rest of the model is not needed."""


def stop(*_: object) -> None:
    raise Enough
