"""Refuse models that a patch would not reach as a whole, or that scale RoPE already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from hf_posenc.errors import AlreadyScaled, ForeignPatch, HostConfigInvalid, UnsupportedModel, shown
from hf_posenc.forward.offloading import is_foreign
from hf_posenc.patching.preconditions.rotation import PUT_BACK
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.build import rotates

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry
    from hf_posenc.patches.adapter import Adapter


def check_existing_scaling(adapter: Adapter, config: Any, schemes: list[Scheme], *, trained_length_given: bool) -> None:
    """Refuse to put a scheme on a rotation that the configuration scales already.

    Raises:
        AlreadyScaled: the scheme would overwrite that scaling, or cannot be put on top of it.
    """
    scaling = adapter.scaled_already(config)
    if scaling is None:
        return
    if not trained_length_given and any(s.replaces_host and rotates(s) for s in schemes):
        name = next((s.extra_repr() for s in schemes if any(part.stretches for part in s.schemes)), "yarn")
        other = "" if scaling in adapter.length_dependent else f', or stretch what is there: scheme="host+{name}"'
        raise AlreadyScaled(
            f"This model's configuration scales RoPE already ({scaling}), and the scheme would overwrite that. Pass "
            f"trained_length= to say what the weights saw before{other}."
        )
    if not all(s.replaces_host for s in schemes) and scaling in adapter.length_dependent:
        raise AlreadyScaled(
            f"This model's frequencies change with the length ({scaling}); nothing can be put on top of them. "
            'Use a scheme that replaces them, such as "dynamic_ntk", with trained_length=.'
        )


def check_layer_count(adapter: Adapter, base: nn.Module, geometry: Geometry) -> None:
    """Refuse a base model whose attention layers cannot all be patched.

    Raises:
        UnsupportedModel: it has none, or another number than its configuration says.
    """
    found = adapter.attention_count(base)
    if found == 0 == geometry.layers:
        raise UnsupportedModel(f"This {type(base).__name__} has no layers. Pass a model with attention.")
    if found == 0:
        classes = ", ".join(cls.__name__ for cls in adapter.attention)
        raise UnsupportedModel(
            f"This {type(base).__name__} has no attention layer that can be patched: {type(adapter).__name__} knows "
            f"{classes}. Patch the model before it is rewritten, or add its attention class to the adapter."
        )
    if found != geometry.layers:
        raise UnsupportedModel(
            f"This {type(base).__name__} has {found} attention layers that can be patched, and its configuration "
            f"says {geometry.layers}. Set num_hidden_layers to the layers that it has, or patch the whole model, as "
            "its class makes it, before it is cut or rewritten."
        )


def check_remembered(adapter: Adapter, base: nn.Module) -> None:
    """Refuse a model whose modules were built with other numbers than its configuration has now.

    Raises:
        HostConfigInvalid: as it says.
    """
    for name, attribute, expected in adapter.remembered(base):
        live = getattr(base.get_submodule(name), attribute, None)
        if live != expected:
            raise HostConfigInvalid(
                f"{attribute} of {name} in this {type(base).__name__} is {shown(live)}, and its configuration gives "
                f"{shown(expected)}: one of the two was changed after the model was built. {PUT_BACK}"
            )


def check_foreign_forward(adapter: Adapter, base: nn.Module, scheme: Scheme) -> None:
    """Refuse modules whose ``forward`` was replaced on the instance, as the replaced class would never be called.

    Raises:
        ForeignPatch: another library did that.
    """
    for module in (*adapter.attentions(base), *(module for module, _ in adapter.swaps(base, scheme))):
        if is_foreign(module):
            raise ForeignPatch(
                f"A {type(module).__name__} of this model has a forward of its own on the instance, which would hide "
                "the patch. Undo the other patch first, or reload the model."
            )
