"""Put the hooks of `hf_posenc.checkpoints.peft_hooks` in place of methods of PEFT and of transformers' own adapters.

This happens once, when both this package and PEFT are imported (`hf_posenc.core.lazy`). It may happen in the middle of
an import, because this package imports modules of transformers that import PEFT. So this file imports nothing of this
package before one of the methods is called.
"""

from __future__ import annotations

import functools
import inspect
from importlib import import_module
from typing import Any

HOOKS = "hf_posenc.checkpoints.peft_hooks"
HOOKED = "posenc_hooked"  # attribute of a method that is hooked already
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
"""Module and method → name of the hook that replaces it."""

FOLDER_ARGUMENTS = ("model_id", "peft_model_id", "model_name_or_path")  # parameters of methods that load an adapter
READ = {
    "loading_on_base": FOLDER_ARGUMENTS,
    "loading_into": FOLDER_ARGUMENTS,
    "saving": ("save_directory",),
    "describing": ("output_dir",),
    "unguarding": ("path_json_file",),
}
"""Hook → parameters of which it needs one in the replaced method."""

lacking: list[str] = []
"""Those of `METHODS` that the installed versions lack. If there are any, all hooks refuse a patched model."""


def install() -> None:
    """Wrap the methods of PEFT and of transformers' own adapters that inject, load, save and merge adapters."""
    for name, hook in METHODS.items():
        module, _, path = name.partition(":")
        owner, _, method = path.rpartition(".")
        try:
            home = import_module(module)
            wrap(getattr(home, owner) if owner else home, method, hook)
        except (ImportError, AttributeError):  # an error here would break another package's import
            lacking.append(name)


def wrap(owner: Any, name: str, hook: str) -> None:
    """Replace a method, class method or function of a module by the hook of this name. A second call does nothing.

    The hook gets the original as its first argument.
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
    """Refuse a version of PEFT or transformers that lacks a method to be hooked."""
    if lacking:
        from hf_posenc.core.lazy import HOSTS
        from hf_posenc.core.tested_versions import host_changed

        package = HOSTS[lacking[0].partition(":")[0].partition(".")[0]]
        words = " and ".join(name.replace(":", ".") for name in lacking)
        raise host_changed(package, f"{words} as hf-posenc knows it, for adapters on a patched model")
