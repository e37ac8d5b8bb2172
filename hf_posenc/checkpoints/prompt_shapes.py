"""The shape of keys and values that PEFT puts in front of a text, for models whose configuration says it otherwise.

PEFT reads ``num_attention_heads`` and ``num_key_value_heads``. MPT calls the former ``n_heads``; Falcon says by
``multi_query`` that one head of keys serves all queries. A patched model caches the heads of its geometry.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from hf_posenc.patching.state import base_model_of, is_patched, scheme_of, stacks_of

OF_KEYS = ("PREFIX_TUNING", "CARTRIDGE")  # methods that train keys and values; others train embeddings


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
