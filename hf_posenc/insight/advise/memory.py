"""Memory of weights and KV cache, measured on the meta device, and the memory of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
    StaticCache,
)

from hf_posenc.core.memory import reported_memory

if TYPE_CHECKING:
    from hf_posenc.schemes.base import Scheme

BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True)
class Memory:
    """Memory in bytes.

    Attributes:
        dtype: of weights and cache.
        weights: of the model.
        cache: of the unpatched model at the target length, for one text; 0 where it has none, as an encoder.
        token: bytes of the cache per token.
        ram, gpu: of this machine, in all: main memory, and the largest GPU's; None where unknown or absent.
    """

    dtype: str
    weights: int
    cache: int
    token: int
    ram: int | None
    gpu: int | None

    @property
    def largest(self) -> tuple[int, str] | None:
        """Memory a model would run in, and its name: that of one GPU, where there is one."""
        found = [(self.gpu, "GPU memory"), (self.ram, "RAM")]
        return next(((count, name) for count, name in found if count), None)


def skeleton(config: PreTrainedConfig, dtype: str | None = None) -> PreTrainedModel:
    """Build the model of a configuration on the meta device, of the class its checkpoint names."""
    named = [getattr(transformers, str(name), None) for name in config.architectures or ()]
    classes: list[Any] = [cls for cls in named if isinstance(cls, type) and issubclass(cls, PreTrainedModel)]
    kwargs: dict[str, Any] = {} if dtype in (None, "auto") else {"dtype": dtype}
    with torch.device("meta"):
        return classes[0]._from_config(config, **kwargs) if classes else AutoModel.from_config(config, **kwargs)


def has_cache(config: PreTrainedConfig) -> bool:
    """Whether models of an architecture without an adapter are decoders, by transformers' lists of classes."""
    kind = type(config)
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING and kind not in MODEL_FOR_MASKED_LM_MAPPING


def measured(model: PreTrainedModel, target: int, *, causal: bool) -> Memory:
    """Memory of a skeleton and of its cache at ``target`` tokens; layers with a window keep no more than that."""
    cache = cache_bytes(model, target) if causal else 0
    return Memory(
        dtype=str(model.dtype).removeprefix("torch."),
        weights=model.get_memory_footprint(return_buffers=False),
        cache=cache,
        token=cache_bytes(model, 1) if causal else 0,
        ram=reported_memory(),
        gpu=gpu_memory(),
    )


def cache_bytes(model: PreTrainedModel, length: int) -> int:
    """Bytes of keys and values of one text."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    cache = StaticCache(config, max_cache_len=length)
    cache.early_initialization(
        1, getattr(config, "num_key_value_heads", None) or heads, head_dim, model.dtype, torch.device("meta")
    )
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def kept_tokens(scheme: Scheme, target: int) -> int:
    """Tokens in a full cache under a scheme."""
    kept = scheme.kept_keys
    return target if kept is None else min(target, sum(kept))


def cache_under(scheme: Scheme, memory: Memory, target: int) -> int:
    """Bytes of the cache of one text under a scheme; a key that is kept twice takes half as much again."""
    share = kept_tokens(scheme, target) * memory.token
    twice = not scheme.caches_one_key and any(part.record.cache == "copies" for part in scheme.schemes)
    return share * 3 // 2 if twice else share


def gpu_memory() -> int | None:
    """Memory of the largest CUDA device in bytes."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return max((torch.cuda.get_device_properties(n).total_memory for n in range(count)), default=None)


def size(count: int) -> str:
    """Bytes in the largest binary unit of which there is at least one: ``"512 KiB"``, ``"12.6 GiB"``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {BINARY[unit]}" if value == int(value) or value >= 100 else f"{value:.1f} {BINARY[unit]}"
