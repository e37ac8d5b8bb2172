"""Set the factor of a patched model: new frequencies in all layers at once, learned parameters kept.

The schemes are built anew for the new lengths, exactly as `patch_model` builds them, and the scheme objects of the
model take over everything in them but parameters. Objects stay the same, so that optimisers, PEFT and compiled graphs
keep hold of them; a compiler's guards see that attributes have changed. The effect probe runs as in a patch, on layers
whose classes are the original ones for the moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from hf_posenc.core.lengths import check_factor, resolve_lengths
from hf_posenc.core.torch_state import float32_by_default
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patches.try_adapter import explained_forward
from hf_posenc.patching.layer_schemes import build_layer_schemes
from hf_posenc.patching.patched_config import check_unchanged, update_config
from hf_posenc.patching.proof import EffectProbe
from hf_posenc.patching.state import patch_of, unpatched_view
from hf_posenc.patching.swap import changing
from hf_posenc.patching.text_limits import first_patch, raise_limits, restore_limits
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.kept_answers import KEPT

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry
    from hf_posenc.patching.report import Proof
    from hf_posenc.patching.state import Patch

M = TypeVar("M", bound=nn.Module)
OF_A_MODULE = frozenset(vars(nn.Module())) | set(KEPT)  # attributes that stay an object's own


def set_factor(model: M, factor: float) -> M:
    """Change the factor of a patched model, as if it had been patched with it; what it has learned is kept.

    Scheme, options, layers and trained length stay as they are; the target length is the trained length times the
    factor, and ``max_position_embeddings``, limits of the length of texts, the report, and what is saved follow. A KV
    cache that was filled before is refused at its next use. Forward passes of other threads finish under the old
    factor, and new ones wait.

    Outputs equal those of `patch_model` with this factor, bit for bit. If the scheme changes nothing at factor 1, they
    equal those of the unpatched model: bit for bit with a position table, up to rounding with a rotation (in float32
    about 1e-5 of the largest logit), because angles are computed in float64 here. `unpatch_model` restores all bits.

    Args:
        model: a patched model, or a PEFT model around one; of an encoder–decoder both stacks are changed.
        factor: target length over trained length, at least 1.

    Returns:
        The same object.

    Raises:
        NotPatched: the model carries no scheme.
        LengthContradiction: the factor is no number of at least 1, or the target length is too large.
        OptionOutOfRange: the scheme does not take this factor, or needs parameters of another shape.
        HostConfigInvalid: settings of positions in the configuration were changed after the patch.
        ModelInUse: this thread is inside a forward pass of the model.
        NoEffect: the effect probe failed; the model is then as it was, as after every other error.
    """
    with float32_by_default(), changing(model) as bases:
        patches = [patch_of(base) for base in bases]
        check_factor(factor)
        kept: list[tuple[nn.Module, dict[str, Any]]] = []
        try:
            found = [_prove(patch, factor, kept) for patch in patches]
        except BaseException:
            for module, attributes in kept:
                set_attributes(module, attributes)
            raise
        for patch, (geometry, proof) in zip(patches, found, strict=True):
            patch.geometry = geometry
            update_config(patch)
            patch.finish(proof)
    if (first := first_patch(model)) is not None:
        restore_limits(first)
        raise_limits(model)
    return model


def _prove(patch: Patch, factor: float, kept: list[tuple[nn.Module, dict[str, Any]]]) -> tuple[Geometry, Proof]:
    """Let the schemes of one base model take over the values of a factor, and prove that outputs follow.

    Returns:
        The geometry under this factor, and the proof; ``kept`` gets the attributes that the schemes had.
    """
    check_unchanged(patch)
    adapter, lengths = patch.adapter, resolve_lengths(configured=patch.geometry.trained_length, factor=factor)
    geometry = replace(patch.geometry, target_length=lengths.target)
    with torch.random.fork_rng(devices=[]):  # whatever is drawn is thrown away
        schemes = build_layer_schemes(patch.layout, geometry, adapter.name, partial(adapter.own_positions, patch.base))
    pairs = list(scheme_pairs(patch.base, schemes))
    for old, new in pairs:
        check_same_parameters(old, new, factor)
    with explained_forward(adapter, patch.base, patched=False), unpatched_view(patch):
        probe = EffectProbe(replace(patch, geometry=geometry))
    kept += [(module, own_attributes(module)) for old, _ in pairs for module in old.modules()]
    for old, new in pairs:
        for mine, its in zip(old.modules(), new.modules(), strict=True):
            set_attributes(mine, own_attributes(its))
    with explained_forward(adapter, patch.base):
        return geometry, probe.verdict(patch)


def scheme_pairs(base: nn.Module, schemes: list[Scheme]) -> Iterator[tuple[Scheme, Scheme]]:
    """Every scheme object of a patched model, copies that PEFT trains in their place included, and its successor."""
    holders = [base] if "posenc" in base._modules else base.__dict__[ATTENTIONS]
    for holder, new in zip(holders, schemes, strict=False):
        for old in outermost_schemes(holder._modules["posenc"]):
            yield old, new


def outermost_schemes(module: nn.Module) -> Iterator[Scheme]:
    """The schemes within ``module``, itself included, that are no part of another."""
    if isinstance(module, Scheme):
        yield module
        return
    for child in module.children():
        yield from outermost_schemes(child)


def check_same_parameters(old: Scheme, new: Scheme, factor: float) -> None:
    """Refuse a factor under which a scheme has other parameters than those that were learned."""
    now, then = ({name: list(p.shape) for name, p in scheme.named_parameters()} for scheme in (old, new))
    if now != then:
        raise OptionOutOfRange(
            f"Under factor {factor:g} scheme {old.shown_name!r} has parameters {then}, and those of this model are "
            f"{now}. Call unpatch_model and patch_model, which initialises new ones."
        )


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """What a module's constructor has set, without parameters, submodules and what torch keeps in every module."""
    return {name: value for name, value in vars(module).items() if name not in OF_A_MODULE}


def set_attributes(module: nn.Module, values: dict[str, Any]) -> None:
    """Assign attributes one by one, which discards what a scheme has computed from the old ones."""
    for name, value in values.items():
        # A module that a scheme refers to would become its child, and its weights be saved once more.
        (object.__setattr__ if isinstance(value, nn.Module) else setattr)(module, name, value)
