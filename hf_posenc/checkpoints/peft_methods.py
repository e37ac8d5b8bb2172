"""Which methods of PEFT, and of transformers' own adapters, go through `hf_posenc.checkpoints.peft_hooks`.

Installed once, when both this package and PEFT are imported (`hf_posenc.core.lazy`). That can be in the middle
of any import: transformers imports PEFT from some of its modules, and this package those modules. So nothing of this
package is imported here before one of the methods is called.
"""

from __future__ import annotations

import functools
import inspect
from importlib import import_module
from typing import Any

HOOKS = "hf_posenc.checkpoints.peft_hooks"
HOOKED = "posenc_hooked"  # marks a method that is hooked already
METHODS = {
    "peft:PeftModel.__init__": "injecting",
    "peft:PeftModel.add_adapter": "injecting",
    "peft:PeftMixedModel.__init__": "injecting",
    "peft:PeftMixedModel.add_adapter": "injecting",
    "transformers.integrations.peft:PeftAdapterMixin.add_adapter": "injecting",
    "peft:PeftModel.from_pretrained": "loading_on_base",
    "peft:PeftMixedModel.from_pretrained": "loading_on_base",
    "peft:PeftModel.load_adapter": "loading_into",
    "peft:PeftMixedModel.load_adapter": "loading_into",
    "transformers.integrations.peft:PeftAdapterMixin.load_adapter": "loading_into",
    "peft.utils.hotswap:hotswap_adapter": "loading_into",
    "peft:PeftModel.save_pretrained": "saving",
    "peft:PeftModel.create_or_update_model_card": "describing",
    "peft:PeftConfig.from_json_file": "unguarding",
    "peft:PeftModelForCausalLM.prepare_inputs_for_generation": "preparing",
    "peft:PeftModelForSeq2SeqLM.prepare_inputs_for_generation": "preparing",
    "peft.tuners.tuners_utils:BaseTuner._unload_and_optionally_merge": "merging",
}
"""Module and method → the hook that is put in its place."""

FOLDER_ARGUMENTS = ("model_id", "peft_model_id", "model_name_or_path")  # of the functions that load
READ = {
    "loading_on_base": FOLDER_ARGUMENTS,
    "loading_into": FOLDER_ARGUMENTS,
    "saving": ("save_directory",),
    "describing": ("output_dir",),
    "unguarding": ("path_json_file",),
}
"""Hook → what it reads of a call: one of these parameters."""

lacking: list[str] = []
"""What the installed versions lack of `METHODS`: then all of them refuse a patched model."""


def install() -> None:
    """Wrap the methods of PEFT, and of transformers' own adapters, that inject, load, save and merge."""
    for name, hook in METHODS.items():
        module, _, path = name.partition(":")
        owner, _, method = path.rpartition(".")
        try:
            home = import_module(module)
            wrap(getattr(home, owner) if owner else home, method, hook)
        except (ImportError, AttributeError):  # nothing is raised in the middle of somebody's import
            lacking.append(name)


def wrap(owner: Any, name: str, hook: str) -> None:
    """Put a hook, by its name, in the place of a method (class methods included) or of a module's function, once.

    It is called with the original before the other arguments.
    """
    home = next((cls for cls in getattr(owner, "__mro__", ()) if name in vars(cls)), owner)
    raw = vars(home).get(name)
    original = raw.__func__ if isinstance(raw, classmethod) else raw
    if hasattr(original, HOOKED):
        return
    if original is None or not {*READ.get(hook, ("self",))} & {*inspect.signature(original).parameters}:
        raise AttributeError(name)

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(HOOKS), "refusing" if lacking else hook)(original, *args, **kwargs)

    setattr(hooked, HOOKED, True)
    setattr(home, name, classmethod(hooked) if isinstance(raw, classmethod) else hooked)


def check_methods() -> None:
    """Refuse a PEFT, or a transformers, that lacks what has to be hooked."""
    if lacking:
        from hf_posenc.core.lazy import HOSTS
        from hf_posenc.core.tested_versions import host_changed

        package = HOSTS[lacking[0].partition(":")[0].partition(".")[0]]
        words = " and ".join(name.replace(":", ".") for name in lacking)
        raise host_changed(package, f"{words} as hf-posenc knows it, for adapters on a patched model")
