"""Which methods of PEFT, and of transformers' own adapters, go through `hf_posenc.checkpoints.peft_hooks`.

Installed once, when both this package and PEFT are imported (`hf_posenc.core.after_import`). That can be in the middle
of any import: transformers imports PEFT from some of its modules, and this package those modules. So nothing of this
package is imported here before one of the methods is called.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

HOOKS = "hf_posenc.checkpoints.peft_hooks"
HOOKED = "posenc_hooked"  # marks a method that is hooked already


def install() -> None:
    """Wrap the methods of PEFT, and of transformers' own adapters, that inject, load, save and merge."""
    from peft import PeftConfig, PeftMixedModel, PeftModel, PeftModelForCausalLM, PeftModelForSeq2SeqLM
    from peft.tuners.tuners_utils import BaseTuner
    from peft.utils import hotswap
    from transformers.integrations.peft import PeftAdapterMixin

    for owner, method, hook in (
        (PeftModel, "__init__", "injecting"),
        (PeftModel, "add_adapter", "injecting"),
        (PeftMixedModel, "__init__", "injecting"),
        (PeftMixedModel, "add_adapter", "injecting"),
        (PeftAdapterMixin, "add_adapter", "injecting"),
        (PeftModel, "from_pretrained", "loading_on_base"),
        (PeftMixedModel, "from_pretrained", "loading_on_base"),
        (PeftModel, "load_adapter", "loading_into"),
        (PeftMixedModel, "load_adapter", "loading_into"),
        (PeftAdapterMixin, "load_adapter", "loading_into"),
        (hotswap, "hotswap_adapter", "loading_into"),
        (PeftModel, "save_pretrained", "saving"),
        (PeftModel, "create_or_update_model_card", "describing"),
        (PeftConfig, "from_json_file", "unguarding"),
        (PeftModelForCausalLM, "prepare_inputs_for_generation", "preparing"),
        (PeftModelForSeq2SeqLM, "prepare_inputs_for_generation", "preparing"),
        (BaseTuner, "_unload_and_optionally_merge", "merging"),
    ):
        wrap(owner, method, hook)


def wrap(owner: Any, name: str, hook: str) -> None:
    """Put a hook, by its name, in the place of a method (class methods included) or of a module's function, once.

    It is called with the original before the other arguments.
    """
    home = next((cls for cls in getattr(owner, "__mro__", ()) if name in vars(cls)), owner)
    raw = vars(home)[name]
    original = raw.__func__ if isinstance(raw, classmethod) else raw
    if hasattr(original, HOOKED):
        return

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(HOOKS), hook)(original, *args, **kwargs)

    setattr(hooked, HOOKED, True)
    setattr(home, name, classmethod(hooked) if isinstance(raw, classmethod) else hooked)
