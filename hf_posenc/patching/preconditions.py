"""All preconditions of a patch, in the order of the checks. A refused model is unchanged.

Wrapped models: a compiled model is compiled again when its layers change class. `DistributedDataParallel` keeps a list
of parameters and would never reduce the gradients of new ones. Layers with sharded weights cannot run alone, so the
effect probe is impossible.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hf_posenc.errors import (
    AlreadyPatched,
    AlreadyScaled,
    CheckpointMismatch,
    ForeignPatch,
    HostConfigInvalid,
    UnsupportedModel,
    shown,
)
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patches.general.base_model import embeds_tokens
from hf_posenc.patches.shared.position_table import FIRST_ROW, SchemePositionTable, check_own_table
from hf_posenc.patches.shared.rope_parameters import TRAINED_LENGTH, TRAINED_THETA
from hf_posenc.patches.try_adapter import is_third_party
from hf_posenc.patches.validate_adapter import explained_swaps, refuse
from hf_posenc.patching.config_guard import SCHEME_KEY
from hf_posenc.patching.host_config import PUT_BACK, check_lengths_and_rotation
from hf_posenc.patching.offloading import has_foreign_forward
from hf_posenc.patching.state import STASH, Patch, describe
from hf_posenc.patching.swap import replaced_parameters
from hf_posenc.patching.weights import check_finite, keep_arranged
from hf_posenc.schemes.build import rotates

SHARDING_CLASSES = ("FullyShardedDataParallel", "FSDPModule")
SHARDED_TENSOR = "DTensor"  # class of weights that are split over devices


def check_model(model: nn.Module, base: nn.Module) -> None:
    """Refuse a model that cannot be patched with any scheme."""
    if STASH in base.__dict__:
        raise AlreadyPatched(
            f"This {type(base).__name__} carries scheme {describe(base).scheme!r} already. Call "
            'unpatch_model(model) first, or compose them: scheme="one+other".'
        )
    config: Any = base.config
    if getattr(config, SCHEME_KEY, None) is not None:
        raise CheckpointMismatch(
            "This checkpoint carries a scheme, but was loaded without it, so its learned positions are lost. "
            "Load it with hf_posenc.from_pretrained, or call hf_posenc.enable_auto() first."
        )
    check_single_model(model, base)
    check_unsharded(model)
    check_lengths_and_rotation(vars(config), f"this {type(base).__name__}")
    keep_arranged(model)
    check_finite(model)


def check_schemes(patch: Patch, *, trained_length_given: bool) -> None:
    """Refuse a model that cannot be patched with these schemes."""
    check_existing_scaling(patch, trained_length_given=trained_length_given)
    check_layer_count(patch)
    check_remembered(patch)
    check_foreign_forward(patch)
    check_tables(patch)
    check_reducer(patch)


def check_existing_scaling(patch: Patch, *, trained_length_given: bool) -> None:
    """Refuse to put a scheme on positions that the configuration scales already."""
    adapter, schemes, config = patch.adapter, patch.schemes, vars(patch.base)["config"]
    scaling = adapter.scaled_already(config)
    if scaling is None:
        return
    if not trained_length_given and any(s.replaces_host and rotates(s) for s in schemes):
        name = next((s.shown_name for s in schemes if any(part.stretches for part in s.schemes)), "yarn")
        stretched = patch.geometry.rotary is not None and scaling not in adapter.length_dependent
        alternative = f', or stretch what is there: scheme="host+{name}"' if stretched else ""
        known, theta = adapter.trained_length(config), getattr(config, TRAINED_THETA, None)
        length = known if hasattr(config, TRAINED_LENGTH) or known < adapter.host_length(config) else ""
        and_base = "" if theta is None else f" and base={theta:g}"
        raise AlreadyScaled(
            f"This model's configuration scales positions already ({scaling}), and the scheme would overwrite that. "
            f"Pass trained_length={length}{and_base} of the training before that scaling{alternative}."
        )
    if not all(s.replaces_host for s in schemes) and scaling in adapter.length_dependent:
        raise AlreadyScaled(
            f"This model's frequencies change with the length ({scaling}), so no scheme can be added to them. "
            'Use a scheme that replaces them, such as "dynamic_ntk", with trained_length=.'
        )


def check_layer_count(patch: Patch) -> None:
    """Refuse a base model whose attention layers cannot all be patched."""
    base, adapter = patch.base, patch.adapter
    patchable, stated = adapter.attention_count(base), patch.geometry.layers
    if patchable == 0 or patchable != stated:
        classes = ", ".join(cls.__name__ for cls in adapter.attention)
        raise UnsupportedModel(
            f"This {type(base).__name__} has {patchable} attention layers that {type(adapter).__name__} can patch"
            f"{classes and f' ({classes})'}, and its configuration says {stated}. Set num_hidden_layers to the layers "
            "that it has, patch the whole model before it is cut, give every layer an attention module of its own, or "
            "name the classes of all of them in the adapter."
        )


def check_layer_indices(patch: Patch) -> None:
    """Refuse equal ``layer_idx`` in a patched decoder of another package's adapter. The general one detects them."""
    base = patch.base
    if not is_third_party(patch.adapter):
        return
    attentions = set(base.__dict__[ATTENTIONS])
    layers = [(name, module) for name, module in base.named_modules(remove_duplicate=False) if module in attentions]
    indices = [getattr(module, "layer_idx", None) for _, module in layers]
    shared = [name for (name, _), i in zip(layers, indices, strict=True) if i is not None and indices.count(i) > 1]
    if shared and patch.geometry.causal:
        raise UnsupportedModel(
            f"Attention layers of this {type(base).__name__} ({', '.join(shared)}) have the same layer_idx, and would "
            "share keys in a KV cache. Give each a module with a layer_idx of its own; weights may be the same."
        )


def check_remembered(patch: Patch) -> None:
    """Refuse a model whose modules were built with other values than its present configuration has."""
    base = patch.base
    for name, attribute, expected in patch.adapter.remembered(base):
        live = getattr(base.get_submodule(name), attribute, None)
        if live != expected:
            raise HostConfigInvalid(
                f"{attribute} of {name} in this {type(base).__name__} is {shown(live)}, and its configuration gives "
                f"{shown(expected)}: one of the two was changed after the model was built. {PUT_BACK}"
            )


def check_foreign_forward(patch: Patch) -> None:
    """Refuse modules whose ``forward`` was replaced on the instance, because it would hide the patched class."""
    with explained_swaps(patch.adapter):
        swapped = [module for module, _ in patch.adapter.swaps(patch.base, patch.schemes[0])]
    for module in (*patch.adapter.attentions(patch.base), *swapped):
        if has_foreign_forward(module):
            raise ForeignPatch(
                f"A {type(module).__name__} of this model has a forward of its own on the instance, which would hide "
                "the patch. Undo the other patch first, or reload the model."
            )


def check_tables(patch: Patch) -> None:
    """Refuse a position table that PEFT has wrapped, or whose number of rows contradicts the configuration."""
    base: Any = patch.base
    adapter, expected = patch.adapter, patch.geometry.table
    first = {id(module): attributes.get(FIRST_ROW, 0) for module, attributes in adapter.attributes(base)}
    tables = [module for module, cls in adapter.swaps(base, patch.schemes[0]) if issubclass(cls, SchemePositionTable)]
    for name, module in base.named_modules():
        if module in tables:
            check_own_table(name, module, base)
    rows = min((table.num_embeddings - first.get(id(table), 0) for table in tables), default=expected)
    if rows != expected:
        stated = getattr(base.config, "max_position_embeddings", None)
        if stated is None or expected is None:
            happened = f"has a geometry with table = {expected}, and the position table has rows for {rows}"
            refuse(type(adapter), happened, "Pass that number")
        raise HostConfigInvalid(
            f"max_position_embeddings of this {type(base).__name__} is {stated}, which gives {expected} positions, and "
            f"its position table has rows for {rows}. Set it to {stated + rows - expected}."
        )


def check_single_model(model: nn.Module, base: nn.Module) -> None:
    """Refuse a module that holds several models that read tokens, because it does not say which one to patch."""
    inside = set(base.modules())
    outside = [module for module in model.modules() if module not in inside and embeds_tokens(module)]
    others = [module for module in outside if base not in set(module.modules())]
    if others:
        raise UnsupportedModel(
            f"This {type(model).__name__} holds several models that read tokens, a {type(base).__name__} and a "
            f"{type(others[0]).__name__}. Patch each of them separately."
        )


def check_unsharded(model: nn.Module) -> None:
    """Refuse a model whose weights are sharded."""
    sharding = {cls.__name__ for module in model.modules() for cls in type(module).__mro__} & set(SHARDING_CLASSES)
    if sharding or any(type(weight).__name__ == SHARDED_TENSOR for weight in model.parameters()):
        raise UnsupportedModel(
            f"The weights of this {type(model).__name__} are spread over devices "
            f"({sorted(sharding)[0] if sharding else SHARDED_TENSOR}). Patch the model first, and shard it afterwards."
        )


def check_reducer(patch: Patch) -> None:
    """Refuse to add or freeze parameters of a model in `DistributedDataParallel`, which has listed them already."""
    adds = any(True for scheme in patch.schemes for _ in scheme.parameters())
    changes = adds or any(weight.requires_grad for weight in replaced_parameters(patch))
    if changes and any(isinstance(module, DistributedDataParallel) for module in patch.model.modules()):
        raise UnsupportedModel(
            "This model is in DistributedDataParallel, which would miss parameters that the scheme adds or "
            "freezes. Patch the model first, and wrap it afterwards."
        )
