"""A patched model as it was before the patch, for a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hf_posenc.forward.offloading import change_class

if TYPE_CHECKING:
    from hf_posenc.patching.state import Patch


@contextmanager
def unpatched_view(patch: Patch) -> Iterator[None]:
    """Run the block with the classes and configurations from before the patch, and the weights of now.

    Configurations are read and written behind patched classes, of which some show a copy of theirs.
    """
    classes = [(module, type(module)) for module, _ in patch.classes]
    configs = [(module, vars(module)["config"]) for module, _ in patch.configs]
    for module, cls in reversed(patch.classes):
        change_class(module, cls)
    for module, config in patch.configs:
        vars(module)["config"] = config
    try:
        yield
    finally:
        for module, cls in classes:
            change_class(module, cls)
        for module, config in configs:
            vars(module)["config"] = config
