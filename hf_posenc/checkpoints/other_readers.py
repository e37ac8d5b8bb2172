"""What other programs read otherwise than transformers in the configuration of a plain checkpoint.

vLLM takes the length of texts from ``max_position_embeddings``, times the factor of RoPE types but those in
`NOT_MULTIPLIED`; transformers bounds generation by the same entry, without the factor. For ``linear`` no number suits
both. mlx-lm rounds the ends of YaRN's ramp, whatever ``truncate`` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_posenc.patches.shared.rope_parameters import by_layer_type

NOT_MULTIPLIED = ("yarn", "longrope", "llama3")  # yarn: the original length is multiplied, which is right
NEVER_MULTIPLIED = "gemma3"  # part of a model type that vLLM excepts
OTHER_WINDOWS = ("max_sequence_length", "max_seq_length", "max_seq_len", "seq_length", "seq_len", "model_max_length")
"""Further entries of a configuration that vLLM takes for the length of texts, or its bound."""


def read_otherwise(config: Any, target_length: int) -> Iterator[str]:
    """A sentence or two on each thing that another program reads otherwise.

    Args:
        config: of the plain model, or the part of it that configures the patched one.
        target_length: of the patch, in tokens.
    """
    sets = by_layer_type(config.rope_parameters).values()
    factor = max((of.get("factor", 1.0) for of in sets if of["rope_type"] not in NOT_MULTIPLIED), default=1.0)
    read = int(config.max_position_embeddings * factor)
    if factor > 1.0 and read > target_length and NEVER_MULTIPLIED not in config.model_type:
        yield (
            f"vLLM multiplies max_position_embeddings by the factor of this RoPE type and would accept texts of "
            f"{read:,} tokens. Start it with --max-model-len {target_length}."
        )
    if any(of["rope_type"] == "yarn" and of.get("truncate", True) is False for of in sets):
        yield (
            "mlx-lm does not read truncate=False of RoPE type 'yarn', and rotates some pairs by other frequencies "
            "without an error. For mlx-lm, patch with truncate=True."
        )
