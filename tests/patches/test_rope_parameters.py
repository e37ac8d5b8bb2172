"""RoPE parameters of a configuration, flat and by type of layer, and what adapters read from them."""

from __future__ import annotations

from transformers import Gemma3TextConfig, LlamaConfig

from hf_posenc.patches.llama import LlamaAdapter
from hf_posenc.patches.shared.rope_parameters import rotations

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def test_sets_of_types_of_layers() -> None:
    config = Gemma3TextConfig(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    )
    found = rotations(config)
    assert {kind: own["rope_type"] for kind, own in found.items()} == {
        "full_attention": "linear", "sliding_attention": "default",
    }  # fmt: skip
    assert LlamaAdapter().scaled_already(config) == "linear"  # as every adapter does, unless it overrides it


def test_the_shortest_trained_length_is_read_from_every_type_of_layer() -> None:
    config = LlamaConfig(max_position_embeddings=256)
    config.rope_parameters = {"full_attention": dict(LLAMA3), "sliding_attention": {"rope_type": "default"}}
    assert LlamaAdapter().trained_length(config) == 64
