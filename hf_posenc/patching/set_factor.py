"""Set the factor of a patched model: new frequencies in all layers at once, with the learned parameters kept.

New schemes are built for the new lengths, exactly as `patch_model` builds them. The scheme objects of the model take
over all attributes of the new ones except parameters. The objects stay the same, so references from optimisers, PEFT
and compiled graphs stay valid; the compiler's guards detect the changed attributes. The effect probe runs as in a
patch: the layers get their original classes back for a moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from hf_posenc.core.lengths import check_factor, resolve_lengths
from hf_posenc.core.torch_state import float32_by_default
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patching.layer_schemes import build_layer_schemes
from hf_posenc.patching.patch import rollback_on_error
from hf_posenc.patching.patched_config import check_unchanged, update_config
from hf_posenc.patching.proof import EffectProbe
from hf_posenc.patching.state import patch_of
from hf_posenc.patching.swap import exclusive_change
from hf_posenc.patching.text_limits import raise_limits, restore_limits
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.memo import MEMOS

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry
    from hf_posenc.patching.report import Proof
    from hf_posenc.patching.state import Patch

M = TypeVar("M", bound=nn.Module)
NOT_COPIED = frozenset(vars(nn.Module())) | set(MEMOS)  # attributes that a scheme object does not take over


def set_factor(model: M, factor: float) -> M:
    """Change the factor of a patched model, as if it had been patched with it. Learned parameters are kept.

    Scheme, options, layers and trained length stay the same. The target length becomes the trained length times the
    factor. ``max_position_embeddings``, text length limits, the report and saved checkpoints follow. A KV cache that
    was filled before is refused at its next use. Other threads must not use the model during the call, because it does
    not wait for their forward passes.

    Outputs equal those of `patch_model` with this factor, bit for bit. If the scheme changes nothing at factor 1,
    outputs equal those of the unpatched model: bit for bit with a position table, up to rounding with a rotation (in
    float32 about 1e-5 of the largest logit, because angles are computed in float64). `unpatch_model` restores all bits.

    Args:
        model: a patched model, or a PEFT model around one. In an encoder–decoder both stacks are changed.
        factor: target length over trained length, at least 1.

    Returns:
        The same object.

    Raises:
        NotPatched: the model carries no scheme.
        LengthContradiction: the factor is not a number of at least 1, or the target length is too large.
        OptionOutOfRange: the scheme does not accept this factor, or needs parameters of another shape.
        HostConfigInvalid: an entry of the configuration that decides positions was changed after the patch.
        ModelInUse: this thread is inside a forward pass of the model.
        NoEffect: the effect probe failed. As after every other error, the model is unchanged.
    """
    with float32_by_default(), exclusive_change(model) as bases:
        patches = [patch_of(base) for base in bases]
        check_factor(factor)
        with rollback_on_error(model):
            proofs = [_prove(patch, factor) for patch in patches]
        for patch, (geometry, proof) in zip(patches, proofs, strict=True):
            patch.geometry = geometry
            update_config(patch)
            patch.finish(proof)
    restore_limits(patches[0])
    raise_limits(model)
    return model


def _prove(patch: Patch, factor: float) -> tuple[Geometry, Proof]:
    """Give the schemes of one base model the attributes for ``factor``. Return the new geometry, and the proof."""
    check_unchanged(patch)
    adapter, lengths = patch.adapter, resolve_lengths(configured=patch.geometry.trained_length, factor=factor)
    geometry = replace(patch.geometry, target_length=lengths.target)
    with torch.random.fork_rng(devices=[]):  # initial values are discarded, so they must not advance the generator
        schemes = build_layer_schemes(patch.layout, geometry, adapter.name, partial(adapter.own_positions, patch.base))
    pairs = list(scheme_pairs(patch.base, schemes))
    for old, new in pairs:
        check_same_parameters(old, new, factor)
    for old, new in pairs:
        for old_module, new_module in zip(old.modules(), new.modules(), strict=True):
            take_over_attributes(old_module, new_module)
    return geometry, EffectProbe(replace(patch, geometry=geometry)).verdict()


def scheme_pairs(base: nn.Module, schemes: list[Scheme]) -> Iterator[tuple[Scheme, Scheme]]:
    """Every scheme object of a patched model, including PEFT's trainable copies, with the new scheme of its layer."""
    holders = [base] if "posenc" in base._modules else base.__dict__[ATTENTIONS]
    for holder, new in zip(holders, schemes, strict=False):
        for old in outermost_schemes(holder._modules["posenc"]):
            yield old, new


def outermost_schemes(module: nn.Module) -> Iterator[Scheme]:
    """The schemes inside ``module``, itself included, that are not part of another scheme."""
    if isinstance(module, Scheme):
        yield module
        return
    for child in module.children():
        yield from outermost_schemes(child)


def check_same_parameters(old: Scheme, new: Scheme, factor: float) -> None:
    """Refuse a factor that changes the names or shapes of a scheme's learned parameters."""
    now, then = ({name: list(p.shape) for name, p in scheme.named_parameters()} for scheme in (old, new))
    if now != then:
        raise OptionOutOfRange(
            f"Under factor {factor:g} scheme {old.shown_name!r} has parameters {then}, and those of this model are "
            f"{now}. Call unpatch_model and patch_model, which initialises new ones."
        )


def take_over_attributes(old: nn.Module, new: nn.Module) -> None:
    """Assign the attributes that a constructor set on ``new``. Each assignment discards a scheme's cached answers."""
    for name, value in vars(new).items():
        if name in NOT_COPIED:
            continue
        # setattr would make a module that a scheme refers to its child, and its weights would be saved twice.
        assign = object.__setattr__ if isinstance(value, nn.Module) else setattr
        assign(old, name, value)
