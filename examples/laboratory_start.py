"""Starting weights of the laboratory models: an induction circuit, which a few minutes of training would not find.

layer 0       head i of the first half reads the token i + 1 positions before         x_t + Σ_i P^i x_{t−i}
layers 1, 2   heads of the last half look for earlier occurrences of the same tokens, and copy what came after them:
              q = U h_t,  k = U Pᵀ h_s,  output V Vᵀ h_s

The matrices are random and orthogonal, as in mimetic initialisation (Trockman, Kolter 2023, arXiv:2305.09828). The
circuit is an induction head (Olsson et al. 2022, arXiv:2209.11895) for several tokens (Akyürek et al. 2024,
arXiv:2401.12973). How heads find tokens by position depends on the scheme and is fitted: for a minute or two, queries,
keys and positional parameters of layers 0 and 1 are regressed on random tokens. All other weights are equal for every
scheme with the same seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

EMBEDDING_SCALE = 0.1
CONSTANT_SHARE = 0.7
"""Norm of the direction that all embeddings share, relative to theirs; queries that depend only on position need it."""
MOVED = 2.0
"""Norm of the first layer's output, relative to the part of the embeddings that it reads."""
SHARPNESS = 4.0
"""Scale of the matching heads' queries times that of their keys."""
COPIED = 0.5
"""Scale of the matching heads' output."""
LENGTH = 256
"""Tokens per row in the regressions."""
ROUNDS = 900

Drawn = tuple[Tensor, Tensor, Tensor]
"""Tokens `[rows, length]`; which of them count `[rows, length]`; and the index of what each head should read there,
`[rows, heads, length]`."""


def start_from_induction(model: LlamaForCausalLM, seed: int) -> tuple[float, float]:
    """Write the circuit into a model; returns the errors of its heads after the fit, in layer 0 and in layer 1."""
    generator = torch.Generator().manual_seed(seed)
    width, first, second = model.config.hidden_size, *(layer.self_attn for layer in model.model.layers[:2])
    shared = torch.randn(width, generator=generator)
    shared /= shared.norm()
    without_shared = torch.eye(width) - torch.outer(shared, shared)
    previous = orthogonal(width, generator)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding.copy_(EMBEDDING_SCALE * torch.randn(embedding.shape, generator=generator))
        embedding.copy_(embedding @ without_shared + EMBEDDING_SCALE * CONSTANT_SHARE * width**0.5 * shared)
        write_previous(first, previous, without_shared, generator)
        for layer in model.model.layers[1:3]:
            write_matching(layer.self_attn, previous, without_shared, generator)
    vocabulary, half = model.config.vocab_size, model.config.num_attention_heads // 2
    before = fit(model, first, range(half), lambda: by_offset(vocabulary, half, generator))
    matched = fit(model, second, range(half, 2 * half), lambda: by_match(vocabulary, half, generator))
    return before, matched


def orthogonal(size: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=generator))[0]


def write_previous(attention: nn.Module, previous: Tensor, without_shared: Tensor, generator: torch.Generator) -> None:
    """Write heads that map a part of what they read, equal for all heads, to the directions ``previous ** (i + 1)``.

    Queries and keys start with opposite signs, so that a token does not match itself best.
    """
    size, half = attention.head_dim, len(previous) // 2
    values, queries = orthogonal(len(previous), generator)[:size], orthogonal(len(previous), generator)[:half]
    moved = MOVED * EMBEDDING_SCALE * previous @ values.T
    for start in range(0, half, size):
        attention.v_proj.weight[start : start + size] = values @ without_shared
        attention.o_proj.weight[:, start : start + size] = moved
        moved = previous @ moved
    attention.q_proj.weight[:half] = 0.5 * queries @ without_shared
    attention.k_proj.weight[:half] = -0.5 * queries @ without_shared


def write_matching(attention: nn.Module, previous: Tensor, without_shared: Tensor, generator: torch.Generator) -> None:
    """Write heads that attend to the tokens after earlier occurrences of the last tokens, and copy them."""
    half = len(previous) // 2
    match, values = orthogonal(len(previous), generator)[half:], orthogonal(len(previous), generator)[half:]
    attention.q_proj.weight[half:] = SHARPNESS**0.5 * match @ without_shared
    attention.k_proj.weight[half:] = SHARPNESS**0.5 * match @ previous.T
    attention.v_proj.weight[half:] = values @ without_shared
    attention.o_proj.weight[:, half:] = COPIED * values.T


def by_offset(vocabulary: int, heads: int, generator: torch.Generator) -> Drawn:
    """Draw random tokens, in half of the rows from a small alphabet; head i should read the token i + 1 before."""
    alphabet = torch.randint(2, vocabulary, (16,), generator=generator)
    recurring = alphabet[torch.randint(16, (1, LENGTH), generator=generator)]
    ids = torch.cat((recurring, torch.randint(2, vocabulary, (1, LENGTH), generator=generator)))
    asked = (torch.arange(LENGTH) >= heads).expand_as(ids)
    read = torch.arange(LENGTH) - torch.arange(1, heads + 1)[:, None]
    return ids, asked, read.clamp(min=0).expand(len(ids), -1, -1)


def by_match(vocabulary: int, heads: int, generator: torch.Generator) -> Drawn:
    """Draw rows with a few strings among random tokens, then random repetitions of these strings.

    In the repetitions, every head should read what followed the same tokens the first time.
    """
    rows = [matching_row(vocabulary, heads, generator) for _ in range(2)]
    ids, asked, read = (torch.stack(part) for part in zip(*rows, strict=True))
    return ids, asked, read


def matching_row(vocabulary: int, heads: int, generator: torch.Generator) -> Drawn:
    """Draw one row for `by_match`.

    All strings share two tokens at their start and two more after three own tokens. After the shared tokens, the
    nearest tokens do not tell the strings apart, so a head has to match more distant ones.
    """
    integer = partial(torch.randint, generator=generator)
    count = int(integer(2, 7, ()))
    equal, own = integer(2, vocabulary, (4,)), integer(2, vocabulary, (count, 9))
    strings = torch.cat((equal[:2].expand(count, -1), own[:, :3], equal[2:].expand(count, -1), own[:, 3:]), dim=1)
    size = strings.shape[1]
    gaps = integer(0, LENGTH // 2 // count - size + 1, (count,))
    starts = gaps.cumsum(0) + size * torch.arange(count)
    ids = integer(2, vocabulary, (LENGTH,))
    for start, string in zip(starts.tolist(), strings, strict=True):
        ids[start : start + size] = string
    asked, read = torch.zeros(LENGTH, dtype=torch.bool), torch.zeros(LENGTH, dtype=torch.long)
    for start in range(int(starts[-1]) + size, LENGTH - size + 1, size):
        repeated = int(integer(count, ()))
        ids[start : start + size] = strings[repeated]
        asked[start + 4 : start + size - 1] = True
        read[start : start + size] = starts[repeated] + 1 + torch.arange(size)
    return ids, asked, read.expand(heads, -1)


def fit(model: LlamaForCausalLM, attention: nn.Module, heads: range, draw: Callable[[], Drawn]) -> float:
    """Train heads of a layer to read the values at the drawn indices; returns the relative error at the end."""
    size, shared = attention.head_dim, getattr(model.model, "posenc", None)
    fitted = [p for n, p in attention.named_parameters() if not n.startswith(("v_proj", "o_proj"))]
    fitted += [] if shared is None else list(shared.parameters())
    optimizer = torch.optim.Adam(fitted, lr=3e-3)
    errors = []
    for _ in range(ROUNDS):
        ids, asked, index = draw()
        values, read = (x.unflatten(-1, (-1, size))[:, :, heads] for x in inner(model, attention, ids))
        targets = values.detach().transpose(1, 2).gather(2, index[..., None].expand(-1, -1, -1, size)).transpose(1, 2)
        error = (read - targets)[asked].pow(2).mean() / targets[asked].pow(2).mean()
        error.backward()
        optimizer.step()
        optimizer.zero_grad()
        errors.append(error.item())
    model.zero_grad()
    return statistics.mean(errors[-50:])


def inner(model: LlamaForCausalLM, attention: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Values and head outputs of a layer, both `[rows, length, heads · head_dim]`; later layers are not run."""
    captured: list[Tensor] = []

    def stop(module: nn.Module, inputs: tuple[Tensor]) -> None:
        captured.append(inputs[0])
        raise StopForward

    hooks = [
        attention.v_proj.register_forward_hook(lambda module, inputs, output: captured.append(output)),
        attention.o_proj.register_forward_pre_hook(stop),
    ]
    with suppress(StopForward):
        model(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    values, read = captured
    return values, read


class StopForward(Exception):
    """Ends a forward pass whose later layers are not needed."""
