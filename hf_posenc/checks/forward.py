"""Reading a model: the text it gets, the numbers it gives, and how far two readings are apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from hf_posenc.patching.state import base_model_of


def random_tokens(model: nn.Module, length: int, rows: int = 1, seed: int = 0) -> Tensor:
    """Tokens ``[row, token]``, the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    words = config_of(model).vocab_size
    return torch.randint(3, words, (rows, length), generator=generator).to(next(model.parameters()).device)


def positions_from(model: nn.Module, length: int, start: int = 0) -> Tensor:
    """Positions of a text that begins at ``start``, ``[1, token]``."""
    return torch.arange(start, start + length, device=next(model.parameters()).device)[None]


def config_of(model: nn.Module) -> PreTrainedConfig:
    """The configuration of the base model."""
    return base_model_of(model)[0].config  # type: ignore[return-value]


def output_module(model: nn.Module) -> nn.Module:
    """What answers for every token: a language model itself, the base model inside any other."""
    return model if _speaks(model) else base_model_of(model)[0]


def forward(model: nn.Module, tokens: Tensor, *, seed: int = 0, **call: Any) -> Tensor:
    """Logits, or hidden states where there is no vocabulary head: ``[row, token, width]``, float32, no gradient.

    Every reading starts from one seed, so that schemes which draw positions draw the same again.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return forward_with_grad(model, tokens, **call).float()


def forward_with_grad(model: nn.Module, tokens: Tensor, **call: Any) -> Tensor:
    """The same with gradient, in the dtype of the model."""
    return token_states(output_module(model)(input_ids=tokens, use_cache="past_key_values" in call, **call))


def token_states(out: Any) -> Tensor:
    """What a model's output says of every token, ``[row, token, width]``."""
    return next(value for value in out.values() if isinstance(value, Tensor) and value.ndim == 3)


def forward_in_chunks(
    model: nn.Module, tokens: Tensor, cache: Cache, sizes: list[int], mask: Tensor | None = None
) -> Tensor:
    """Logits of a text handed over piece by piece, ``[row, token, width]``; ``mask`` covers all of it."""
    parts, start = [], 0
    for size in sizes:
        end = start + size
        seen: dict[str, Any] = {} if mask is None else {"attention_mask": mask[:, :end]}
        parts.append(forward(model, tokens[:, start:end], past_key_values=cache, **seen))
        start = end
    return torch.cat(parts, dim=1)


def chunk_sizes(cut: int, step: int, length: int) -> list[int]:
    """Sizes: the first ``cut`` tokens at once, the others ``step`` at a time."""
    rest = length - cut
    return [cut, *[step] * (rest // step), *([rest % step] if rest % step else [])]


def new_cache(kind: type[Cache], model: nn.Module, length: int) -> Cache:
    """An empty cache for a text of that length."""
    config = config_of(model)
    if kind is DynamicCache:
        return DynamicCache(config=config)
    return StaticCache(config=config, max_cache_len=length)


def max_deviation(one: Tensor, two: Tensor, real: Tensor | None = None) -> tuple[float, str]:
    """Largest deviation of two readings ``[row, token, width]`` in units of their spread, and the token it is at.

    Args:
        one: the reading under test.
        two: what it should be.
        real: ``[row, token]`` bool, the tokens that count; all by default.
    """
    apart = (one - two).abs().amax(-1)
    if real is not None:
        apart = apart.masked_fill(~real, 0.0)
    spread = float(two.float().std().clamp(min=1.0))
    worst = int(apart.nan_to_num(nan=torch.inf).argmax())
    row, token = divmod(worst, apart.shape[1])
    return float(apart.flatten()[worst]) / spread, f"token {token} of row {row}"


def _speaks(model: nn.Module) -> bool:
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return head is not None
