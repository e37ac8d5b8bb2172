"""The length of texts that vLLM accepts by the configuration of a plain checkpoint.

vLLM takes it from ``max_position_embeddings``, times the factor of RoPE types but those in `NOT_MULTIPLIED`;
transformers bounds generation by the same entry, without the factor. For ``linear`` no number suits both.
"""

from __future__ import annotations

from typing import Any

from hf_posenc.patches.shared.rope_parameters import by_layer_type

NOT_MULTIPLIED = ("yarn", "longrope", "llama3")  # yarn: the original length is multiplied, which is right
NEVER_MULTIPLIED = "gemma3"  # part of a model type that vLLM excepts
OTHER_WINDOWS = ("max_sequence_length", "max_seq_length", "max_seq_len", "seq_length", "seq_len", "model_max_length")
"""Further entries of a configuration that vLLM takes for the length of texts, or its bound."""


def length_in_vllm(config: Any, target_length: int) -> str | None:
    """A sentence on the length of texts, where vLLM would accept others than the patch is for.

    Args:
        config: of the plain model, or the part of it that configures the patched one.
        target_length: of the patch, in tokens.
    """
    sets = by_layer_type(config.rope_parameters).values()
    factor = max((of.get("factor", 1.0) for of in sets if of["rope_type"] not in NOT_MULTIPLIED), default=1.0)
    read = int(config.max_position_embeddings * factor)
    if factor > 1.0 and read > target_length and NEVER_MULTIPLIED not in config.model_type:
        return (
            f"vLLM multiplies max_position_embeddings by the factor of this RoPE type and would accept texts of "
            f"{read:,} tokens. Start it with --max-model-len {target_length}."
        )
    if any(of["rope_type"] == "longrope" for of in sets):
        return (
            f"vLLM accepts texts of the trained length for RoPE type 'longrope'. Start it with --max-model-len "
            f"{target_length}; it then rotates every text by the long list."
        )
    return None
