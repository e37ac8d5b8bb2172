"""PEFT's prompts and prefixes on patched models: the shape of what they train, and generating with them.

PEFT reads ``num_attention_heads`` and ``num_key_value_heads``. MPT calls the former ``n_heads``; Falcon says by
``multi_query`` that one head of keys serves all queries. A patched model caches the heads of its geometry.

PEFT before 0.22 puts its prompts before a text whenever the inputs of a step hold no ``past_key_values``. From
transformers 5.24 on they hold ``cache``, so that every generated token gets the prompts again. Unpatched models are
left to PEFT.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
from packaging.version import Version
from torch import nn

from hf_posenc.forward.host_calls import cache_name
from hf_posenc.patching.state import base_model_of, is_patched, scheme_of, stacks_of

OF_KEYS = ("PREFIX_TUNING", "CARTRIDGE")  # methods that train keys and values; others train embeddings
NAME = "past_key_values"  # as PEFT knows it
OF_OLD = Version(peft.__version__) < Version("0.22")


def fill_in_shapes(config: Any, base: nn.Module) -> None:
    """Complete the PEFT configuration of prompts or prefixes by the geometry of a patched base; leave all others."""
    if not getattr(config, "is_prompt_learning", False) or not is_patched(base) or stacks_of(base):
        return
    model: Any = base_model_of(base)[0]
    if "num_key_value_heads" in model.config.get_text_config().to_dict():
        return
    geometry, prefix = scheme_of(base).geometry, config.peft_type in OF_KEYS
    if config.num_layers is None:  # which PEFT before 0.19 asks for
        config.num_layers = geometry.layers
    if config.num_attention_heads is None:
        config.num_attention_heads = geometry.kv_heads if prefix else geometry.heads
    if config.token_dim is None and prefix:
        config.token_dim = geometry.kv_heads * geometry.head_dim


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
