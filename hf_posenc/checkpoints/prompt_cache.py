"""Generate with PEFT's prompt, prefix and p-tuning on transformers 5.24, where the KV cache has another name.

PEFT before 0.22 puts its prompts before a text whenever the inputs of a step hold no ``past_key_values``. From 5.24
on they hold ``cache``, so that every generated token gets the prompts again. Unpatched models are left to PEFT.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
from packaging.version import Version

from hf_posenc.forward.host_calls import cache_name
from hf_posenc.patching.state import is_patched

NAME = "past_key_values"  # as PEFT knows it
OF_OLD = Version(peft.__version__) < Version("0.22")


def preparing(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """``prepare_inputs_for_generation``: the inputs of a step, whose KV cache PEFT finds under the name it knows."""
    base = model.get_base_model()
    name = cache_name(type(base))
    if not OF_OLD or name in (None, NAME) or not model.active_peft_config.is_prompt_learning or not is_patched(base):
        return original(model, *args, **kwargs)
    prepare = model.base_model_prepare_inputs_for_generation

    def renamed(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {NAME if key == name else key: value for key, value in prepare(*args, **kwargs).items()}

    model.base_model_prepare_inputs_for_generation = renamed
    try:
        inputs = original(model, *args, **kwargs)
    finally:
        model.base_model_prepare_inputs_for_generation = prepare
    return {name if key == NAME else key: value for key, value in inputs.items()}
