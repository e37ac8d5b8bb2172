"""Check a patched model before it begins a continuous batch.

transformers runs continuous batches in another thread. There an error becomes a string in every result, and
`generate_batch` returns as if it had succeeded. So `init_continuous_batching` is replaced on the instance by a function
that runs the checks of `hf_posenc.forward.paged_support` in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn

from hf_posenc.errors import PosEncError
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.forward.paged_support import check_continuous_batch

METHOD = "init_continuous_batching"
DISCARD_CACHE = "destroy_cached_continuous_batching_manager"


def init_checked(model: Any, *args: Any, **kwargs: Any) -> Any:
    """``init_continuous_batching`` of a patched model, which `generate_batch` and all other entry points call.

    Raises:
        BackendCannotCarry: the paged KV cache cannot hold what the scheme caches, or the backend that continuous
            batching chose cannot compute it.
        NeedsWholeText: positions depend on the length of the whole text.
    """
    before = model.config._attn_implementation
    manager = getattr(type(model), METHOD)(model, *args, **kwargs)  # computes and allocates nothing yet
    uses_graph = getattr(manager, "use_cuda_graph", False)  # transformers 5.4
    graphs = any(getattr(manager.continuous_batching_config, "cuda_graph_booleans", (uses_graph,)))
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
    """Put `init_checked` on every generating module of ``model``, and discard pages cached by earlier batches."""
    for module in _generating_modules(model):
        getattr(module, DISCARD_CACHE)()
        if METHOD not in module.__dict__:
            module.__dict__[METHOD] = partial(init_checked, module)


def remove_batching_check(model: nn.Module) -> None:
    """Undo `install_batching_check`, and discard pages that hold keys of the scheme."""
    for module in _generating_modules(model):
        if getattr(module.__dict__.get(METHOD), "func", None) is init_checked:
            getattr(module, DISCARD_CACHE)()
            del module.__dict__[METHOD]


def _generating_modules(model: nn.Module) -> Iterator[nn.Module]:
    return (
        module for module in model.modules() if hasattr(type(module), METHOD) and hasattr(type(module), DISCARD_CACHE)
    )
