"""Atomic `save_pretrained` of a patched model: all files of a checkpoint are new, or all are old.

transformers writes the configuration first and the weights last, in place. Interrupted over an earlier checkpoint, it
leaves the weights of one scheme under the configuration of another, which load without an error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import nn

from hf_posenc.core.files.staged import staged
from hf_posenc.forward.offloading import offloaded_values
from hf_posenc.patching.state import STASH
from hf_posenc.patching.stored.saver_check import check_said
from hf_posenc.patching.text_limits import raise_limits_in

METHOD = "save_pretrained"


class AtomicSave:
    """``save_pretrained`` of a patched model, set on the instance; copies of the model get one of their own."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save as the class's own method does, into a staging folder first.

        Where several processes write, or the Hub is written to, the class's own method runs alone.

        Raises:
            HostConfigInvalid: the configuration was changed after the patch in what decides positions.
            CheckpointMismatch: it does not say what each part of the model carries.
        """
        for module in self.model.modules():
            patch = module.__dict__.get(STASH)
            if patch is not None and patch.record is not None:
                patch.record.check(module)
        check_said(self.model)
        own: Any = getattr(type(self.model), METHOD)
        shared = kwargs.get("push_to_hub") or kwargs.get("distributed_checkpoint")
        if args or shared or not kwargs.get("is_main_process", True) or os.path.isfile(save_directory):
            return own(self.model, save_directory, *args, **kwargs)
        if not hasattr(self.model, "hf_device_map") and any(weight.is_meta for weight in self.model.parameters()):
            kwargs.setdefault(
                "state_dict", offloaded_values(self.model)
            )  # transformers saves offloaded weights only with a device map
        with staged(save_directory) as staging:
            own(self.model, str(staging), **kwargs)
            raise_limits_in(Path(save_directory), self.model, into=staging)


def install_atomic_save(model: nn.Module) -> None:
    """Give ``model`` the method, if its class can save and nobody has put another on the instance."""
    if hasattr(type(model), METHOD) and METHOD not in model.__dict__:
        model.__dict__[METHOD] = AtomicSave(model)


def remove_atomic_save(model: nn.Module) -> None:
    """Undo `install_atomic_save`."""
    if isinstance(model.__dict__.get(METHOD), AtomicSave):
        del model.__dict__[METHOD]
