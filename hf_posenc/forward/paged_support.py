"""Refuse what cannot be computed in continuous batches: schemes, backends, and pages that another patch filled.

`hf_posenc.patching.batching` has them checked in the caller's thread, before a batch begins.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from hf_posenc.cache.provenance import MARK
from hf_posenc.errors import BackendCannotCarry, InvalidInput, NeedsWholeText
from hf_posenc.forward.current_forward import ATTENTIONS, schemes_of_base
from hf_posenc.forward.engine_backend import batched_by_engine
from hf_posenc.forward.host_calls import MODULES_FILL_PAGES
from hf_posenc.forward.paged import GRAPHS_OFF, NO_GRAPHS
from hf_posenc.schemes.base import Scheme, implements

BACKENDS = ("sdpa", "paged|sdpa", "paged|eager")  # what transformers calls them here, from 5.4 on
ONE_BY_ONE = "Use model.generate, which has a cache for it."


def check_continuous_batch(base: nn.Module, *, graphs: bool = False) -> None:
    """Refuse the schemes of a patched base model that cannot be computed in continuous batches.

    Args:
        base: with the attention implementation that continuous batching chose.
        graphs: whether batches will be replayed as CUDA graphs.

    Raises:
        BackendCannotCarry: the paged cache has no room for what one caches, or the backend cannot compute it.
        NeedsWholeText: positions depend on the length of the whole text.
    """
    config: Any = base.config
    if not base.__dict__[ATTENTIONS][0].batches_continuously or (MODULES_FILL_PAGES and counts_from_cache(base)):
        raise BackendCannotCarry(
            f"This {type(base).__name__} does not pass the arguments of continuous batching on to its layers, in this "
            "version of transformers. Use model.generate."
        )
    windowed = getattr(config, "sliding_window", None) is not None or "sliding_attention" in (
        getattr(config, "layer_types", None) or ()
    )
    for scheme in schemes_of_base(base):
        check_scheme(scheme, config._attn_implementation, windowed=windowed, graphs=graphs)


def counts_from_cache(base: nn.Module) -> bool:
    """Whether the embeddings of a model number tokens from the length of its cache, which pages do not have."""
    forwards = [vars(cls)["forward"] for m in base.children() for cls in type(m).__mro__ if "forward" in vars(cls)]
    return any("cache_length" in signature(forward).parameters for forward in forwards)


def check_scheme(scheme: Scheme, backend: str, *, windowed: bool, graphs: bool) -> None:
    """Refuse a scheme for `check_continuous_batch`; ``windowed`` says whether the cache drops keys behind a window."""
    name, by_engine = repr(scheme.shown_name), batched_by_engine(scheme)
    if scheme.needs_whole_text:
        raise NeedsWholeText(
            f"Scheme {name} gives positions by the length of the text, which grows while continuous batching "
            f"generates. Use model.generate with use_cache=False."
        )
    if implements(scheme, "extra_key_channels"):
        raise BackendCannotCarry(
            f"Scheme {name} caches more than a key and a value a token, and the pages of continuous batching have no "
            f"room for it. {ONE_BY_ONE}"
        )
    if windowed and by_engine:
        raise BackendCannotCarry(
            f"The configuration has a sliding window, outside which continuous batching drops keys that scheme {name} "
            f"reads. {ONE_BY_ONE}"
        )
    if graphs and by_engine:
        raise BackendCannotCarry(f"{NO_GRAPHS.format(name)} {GRAPHS_OFF}")
    if backend not in BACKENDS and by_engine:
        raise BackendCannotCarry(
            f"The attention backend {backend!r} cannot compute scheme {name} in continuous batches. Use "
            'model.set_attn_implementation("sdpa") and ContinuousBatchingConfig(auto_switch_to_flash=False).'
        )


def mark_pages(cache: PagedAttentionCache, ours: object) -> None:
    """Note on a paged cache which patch fills it: it keeps the keys of finished requests for later ones.

    Args:
        cache: of a manager of continuous batching.
        ours: what the configuration of the patched model says of its patch.

    Raises:
        InvalidInput: another patch filled it.
    """
    if getattr(cache, MARK, ours) != ours:
        raise InvalidInput(
            "The pages of this continuous batch hold keys that were read under another scheme, or under other options "
            "of this one. Call model.destroy_cached_continuous_batching_manager() and start again."
        )
    setattr(cache, MARK, ours)
