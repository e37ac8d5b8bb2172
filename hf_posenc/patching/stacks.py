"""Patch both stacks of an encoder–decoder with one scheme, and undo that.

A patch belongs to a stack: encoder and decoder each get the scheme for their own geometry (an encoder is not causal),
with parameters, a proof of effect and a report of their own, as if they were patched one after the other. What they
have in common is here: the stacks are patched both or not at all, and the configuration of the whole model says the
scheme as those of its stacks do, so that its checkpoints carry it. Stacks may also be patched one by one, with
different schemes; a configuration has no place for these, and such a model cannot be saved as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from hf_posenc.cache.provenance import ENTRY
from hf_posenc.errors import AlreadyPatched, CannotCombine, NotPatched
from hf_posenc.patching.atomic_save import install_atomic_save, remove_atomic_save
from hf_posenc.patching.patched_config import restore_outer_config, write_outer_config
from hf_posenc.patching.state import STASH, base_model_of, is_patched, outer_model, patch_of
from hf_posenc.patching.swap import changing, undo


@contextmanager
def patched_together(model: nn.Module, stacks: Mapping[str, nn.Module]) -> Iterator[None]:
    """Run the block that patches the stacks of ``model``: they are patched both, or not at all.

    Raises:
        AlreadyPatched: one of them carries a scheme.
        CannotCombine: the stacks differ in what their model's configuration would say of both.
    """
    with alone_with(model, stacks):
        for name, stack in stacks.items():
            if is_patched(stack):
                raise AlreadyPatched(
                    f"The {name} of this {type(model).__name__} carries a scheme already. Call unpatch_model(model) "
                    f"first, or patch the other stack alone."
                )
        try:
            yield
            _write_config(model, stacks)
        except BaseException:
            _undo_all(model, stacks)
            raise


def unpatch_together(model: nn.Module, stacks: Mapping[str, nn.Module]) -> None:
    """Undo the patches of the stacks, however they came about.

    Raises:
        NotPatched: there is none.
    """
    if not is_patched(model):
        raise NotPatched("This model carries no scheme. Call patch_model(model, scheme) first.")
    with alone_with(model, stacks):
        _undo_all(model, stacks)


@contextmanager
def alone_with(model: nn.Module, stacks: Mapping[str, nn.Module]) -> Iterator[None]:
    """Run the block while no other thread patches a stack.

    Raises:
        ModelInUse: this thread is inside a forward pass of the model.
    """
    with ExitStack() as held:
        for stack in stacks.values():
            held.enter_context(changing(model, base_model_of(stack)[0]))
        yield


def _write_config(model: nn.Module, stacks: Mapping[str, nn.Module]) -> None:
    """Write the scheme of both stacks into a copy of the whole model's configuration."""
    bases = [base_model_of(stack)[0] for stack in stacks.values()]
    outer: Any = outer_model(model)
    entry = vars(bases[0])[ENTRY]
    for base in bases:
        if vars(base)[ENTRY] != entry:
            raise CannotCombine(
                f"The stacks of this {type(outer).__name__} have different lengths or layers, so that one scheme means "
                f"different things to them: {entry} and {vars(base)[ENTRY]}. Patch them one by one, "
                "model.get_encoder() and model.get_decoder()."
            )
        patch_of(base).whole = outer
    write_outer_config(model, entry)
    install_atomic_save(outer)


def _undo_all(model: nn.Module, stacks: Mapping[str, nn.Module]) -> None:
    outer: Any = outer_model(model)
    for stack in stacks.values():
        base = base_model_of(stack)[0]
        if STASH in base.__dict__:
            undo(patch_of(base))
    remove_atomic_save(outer)
    restore_outer_config(model)
