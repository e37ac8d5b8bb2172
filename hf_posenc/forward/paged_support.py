"""Refuse what cannot be computed in continuous batches: schemes, backends, and pages that another patch filled.

transformers runs continuous batches in another thread, where an error becomes a string in every result, and
`generate_batch` returns as if it had succeeded. So `init_continuous_batching` is replaced on the instance, which checks
in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from hf_posenc.cache.provenance import MARK
from hf_posenc.core.context import PositionContext
from hf_posenc.errors import BackendCannotCarry, InvalidInput, NeedsWholeText, PosEncError
from hf_posenc.forward.current_forward import ATTENTIONS, schemes_of_base
from hf_posenc.forward.paged import GRAPHS_OFF, NO_GRAPHS, needs_engine
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
    if not base.__dict__[ATTENTIONS][0].batches_continuously:
        raise BackendCannotCarry(
            f"This {type(base).__name__} does not hand on to its layers what continuous batching passes to it, in this "
            "version of transformers. Use model.generate."
        )
    windowed = getattr(config, "sliding_window", None) is not None or "sliding_attention" in (
        getattr(config, "layer_types", None) or ()
    )
    for scheme in schemes_of_base(base):
        check_scheme(scheme, config._attn_implementation, windowed=windowed, graphs=graphs)


def check_scheme(scheme: Scheme, backend: str, *, windowed: bool, graphs: bool) -> None:
    """Refuse a scheme for `check_continuous_batch`; ``windowed`` says whether the cache drops keys behind a window."""
    name, token = repr(scheme.extra_repr()), torch.zeros(1, 1, dtype=torch.long)
    by_engine = needs_engine(scheme, PositionContext(token, token, causal=True, contiguous=True))
    if scheme.needs_whole_text:
        raise NeedsWholeText(
            f"Scheme {name} places tokens by the length of their text, which grows while continuous batching "
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


METHOD = "init_continuous_batching"
DISCARD_CACHE = "destroy_cached_continuous_batching_manager"


class CheckedBatching:
    """``init_continuous_batching`` of a patched model; `generate_batch` and all others call it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Same arguments and result as the class's own method.

        Raises:
            BackendCannotCarry: the paged KV cache cannot hold what the scheme caches, or the backend that continuous
                batching chose cannot compute it.
            NeedsWholeText: positions depend on the length of the whole text.
        """
        model: Any = self.model
        before = model.config._attn_implementation
        manager = getattr(type(model), METHOD)(model, *args, **kwargs)  # computes and allocates nothing yet
        of_old = getattr(manager, "use_cuda_graph", False)  # transformers 5.4
        graphs = any(getattr(manager.continuous_batching_config, "cuda_graph_booleans", (of_old,)))
        try:
            for module in model.modules():
                if ATTENTIONS in module.__dict__:
                    check_continuous_batch(module, graphs=graphs)
        except PosEncError:
            if model.config._attn_implementation != before:
                model.set_attn_implementation(before)
            raise
        return manager


def install_batching_check(model: nn.Module) -> None:
    """Give every module of ``model`` that generates the method, and discard pages cached by earlier batches."""
    for module in _generating_modules(model):
        getattr(module, DISCARD_CACHE)()
        if METHOD not in module.__dict__:
            module.__dict__[METHOD] = CheckedBatching(module)


def remove_batching_check(model: nn.Module) -> None:
    """Undo `install_batching_check`; discard pages with keys of the scheme."""
    for module in _generating_modules(model):
        if isinstance(module.__dict__.get(METHOD), CheckedBatching):
            getattr(module, DISCARD_CACHE)()
            del module.__dict__[METHOD]


def _generating_modules(model: nn.Module) -> Iterator[nn.Module]:
    return (
        module for module in model.modules() if hasattr(type(module), METHOD) and hasattr(type(module), DISCARD_CACHE)
    )
