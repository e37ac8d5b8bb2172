"""What both stacks of an encoder–decoder have in common when they are patched with one scheme.

A patch belongs to a stack: encoder and decoder each get the scheme for their own geometry (an encoder is not causal),
with parameters, a proof of effect and a report of their own, as if they were patched one after the other. The stacks
are patched both or not at all, and the configuration of the whole model says the scheme as those of its stacks do, so
that its checkpoints carry it. Stacks may also be patched one by one, with different schemes; a configuration has no
place for these, and such a model cannot be saved as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from hf_posenc.cache.provenance import ENTRY
from hf_posenc.errors import CannotCombine
from hf_posenc.patching.atomic_save import install_atomic_save, remove_atomic_save
from hf_posenc.patching.patched_config import restore_outer_config, write_outer_config
from hf_posenc.patching.state import outer_model, patch_of
from hf_posenc.patching.swap import undo


def write_whole_config(model: nn.Module, bases: Sequence[nn.Module]) -> None:
    """Write the scheme of both stacks into a copy of the whole model's configuration.

    Raises:
        CannotCombine: the stacks differ in what it would say of both.
    """
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


def undo_all(model: nn.Module, bases: Sequence[nn.Module]) -> None:
    """Undo the patches of some base models of ``model``, and what its configuration says of them.

    Raises:
        NotPatched: one of them carries none.
    """
    for base in bases:
        undo(patch_of(base))
    if (outer := outer_model(model)) is not None:
        remove_atomic_save(outer)
        restore_outer_config(model)
