"""Run something on a patched model as if it had never been patched, such as another scheme on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from hf_posenc.patching.patch import unpatch_model
from hf_posenc.patching.rollback import snapshot
from hf_posenc.patching.state import is_patched


@contextmanager
def scheme_set_aside(model: nn.Module) -> Iterator[None]:
    """Run the block on a model without its scheme, which it has again afterwards, learned parameters included.

    A model without a scheme is left as it is. Inside the block the model may be patched and unpatched again.

    Raises:
        ModelInUse: a forward pass computes with the model.
    """
    if not is_patched(model):
        yield
        return
    restore = snapshot(model)
    unpatch_model(model)
    try:
        yield
    finally:
        restore()
