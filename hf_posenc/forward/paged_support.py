"""Checks of continuous batching: refuse unsupported schemes and backends, and pages that another patch filled.

`hf_posenc.patching.batching` runs these checks in the caller's thread, before a batch begins.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from hf_posenc.cache.provenance import WRITTEN_UNDER
from hf_posenc.errors import BackendCannotCarry, InvalidInput, NeedsWholeText
from hf_posenc.forward.current_forward import ATTENTIONS, schemes_of_base
from hf_posenc.forward.engine_backend import batched_by_engine
from hf_posenc.forward.host_calls import MODULES_FILL_PAGES
from hf_posenc.forward.paged import graphs_error
from hf_posenc.schemes.base import Scheme, implements

BACKENDS = ("sdpa", "paged|sdpa", "paged|eager")  # their names in continuous batching, from transformers 5.4 on
ONE_BY_ONE = "Use model.generate, whose cache supports it."


def check_continuous_batch(base: nn.Module, *, graphs: bool = False) -> None:
    """Refuse a patched base model with a scheme that continuous batches do not support.

    Args:
        base: base model, with the attention implementation that continuous batching chose.
        graphs: whether batches will be replayed as CUDA graphs.

    Raises:
        BackendCannotCarry: the paged cache has no room for the values that a scheme caches, or the backend does not
            support the scheme.
        NeedsWholeText: positions depend on the length of the whole text.
    """
    config: Any = base.config
    if not base.__dict__[ATTENTIONS][0].batches_continuously or (MODULES_FILL_PAGES and counts_from_cache(base)):
        raise BackendCannotCarry(
            f"This {type(base).__name__} does not pass the arguments of continuous batching on to its layers in this "
            "version of transformers. Use model.generate."
        )
    kinds = getattr(config, "layer_types", None) or ()
    windowed = getattr(config, "sliding_window", None) is not None or "sliding_attention" in kinds
    for scheme in schemes_of_base(base):
        check_batched_scheme(scheme, config._attn_implementation, windowed=windowed, graphs=graphs)


def counts_from_cache(base: nn.Module) -> bool:
    """Whether the embeddings of a model count positions from the length of the cache, which a paged cache lacks."""
    forwards = [vars(cls)["forward"] for m in base.children() for cls in type(m).__mro__ if "forward" in vars(cls)]
    return any("cache_length" in signature(forward).parameters for forward in forwards)


def check_batched_scheme(scheme: Scheme, backend: str, *, windowed: bool, graphs: bool) -> None:
    """Refuse a scheme for `check_continuous_batch`; ``windowed``: the cache drops keys outside a sliding window."""
    name, by_engine = repr(scheme.shown_name), batched_by_engine(scheme)
    if scheme.needs_whole_text:
        raise NeedsWholeText(
            f"Positions of scheme {name} depend on the length of the text, which grows while continuous batching "
            f"generates. Use model.generate with use_cache=False."
        )
    if implements(scheme, "extra_key_channels"):
        raise BackendCannotCarry(
            f"Scheme {name} caches more than a key and a value per token, and the pages of continuous batching have no "
            f"room for it. {ONE_BY_ONE}"
        )
    if windowed and by_engine:
        raise BackendCannotCarry(
            f"The configuration has a sliding window. Continuous batching drops keys outside of it, but scheme {name} "
            f"reads them. {ONE_BY_ONE}"
        )
    if graphs and by_engine:
        raise graphs_error(scheme)
    if backend not in BACKENDS and by_engine:
        raise BackendCannotCarry(
            f"The attention backend {backend!r} cannot compute scheme {name} in continuous batches. Use "
            'model.set_attn_implementation("sdpa") and ContinuousBatchingConfig(auto_switch_to_flash=False).'
        )


def mark_pages(cache: PagedAttentionCache, entry: object) -> None:
    """Record on a paged cache which patch fills it: later requests may reuse the keys of finished ones.

    Args:
        cache: paged cache of a manager of continuous batching.
        entry: scheme entry of the patched model's configuration.

    Raises:
        InvalidInput: another patch has filled the cache.
    """
    if getattr(cache, WRITTEN_UNDER, entry) != entry:
        raise InvalidInput(
            "The pages of this continuous batch hold keys of another scheme, or of other options "
            "of this one. Call model.destroy_cached_continuous_batching_manager() and start again."
        )
    setattr(cache, WRITTEN_UNDER, entry)
