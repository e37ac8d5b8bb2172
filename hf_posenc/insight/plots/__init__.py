"""Look at schemes: pictures of what they do to positions, computed by the code that models run.

    from hf_posenc.insight.plots import show
    show(["yarn", "ntk"], "frequencies", factor=8)["frequencies"].savefig("bars.png")
    show("rope")                                       # the picture that says most of it

A picture belongs to hooks of a scheme, so a scheme of one's own is shown by the same pictures. `register_picture` adds
one. ``hf-posenc show`` is the command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_posenc.insight.plots.models import Model, Shapes
    from hf_posenc.insight.plots.plot import numbers, show
    from hf_posenc.insight.plots.registry import (
        Picture,
        Sheet,
        View,
        list_pictures,
        register_picture,
    )
    from hf_posenc.insight.plots.target import Subject

FACE = {
    "Model": "models",
    "Picture": "registry",
    "Shapes": "models",
    "Sheet": "registry",
    "Subject": "target",
    "View": "registry",
    "list_pictures": "registry",
    "numbers": "plot",
    "register_picture": "registry",
    "show": "plot",
}

__all__ = [
    "Model",
    "Picture",
    "Shapes",
    "Sheet",
    "Subject",
    "View",
    "list_pictures",
    "numbers",
    "register_picture",
    "show",
]


def __getattr__(name: str) -> object:
    if name not in FACE:
        raise AttributeError(f"module 'hf_posenc.insight.plots' has no attribute {name!r}")
    return getattr(import_module(f"hf_posenc.insight.plots.{FACE[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
