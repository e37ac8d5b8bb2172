"""Tiny random models of any family of transformers, from its configuration class."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

LENGTH = 128  # positions of the tiny models
VOCABULARY = 99

WIDTH = dict.fromkeys(
    [
        *("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim", "embedding_size", "lru_width"),
        *("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "d_ff"),
    ],
    64,
)
FOUR = [
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"),
    *("num_decoder_layers", "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "encoder_attention_heads",
]
POSITIONS = dict.fromkeys(
    ["max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "max_target_positions"], LENGTH
)
EXPERTS = {
    **dict.fromkeys(["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"], 4),
    **dict.fromkeys(["num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_k"], 2),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], 32),
    **dict.fromkeys(["n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"], 1),
}
STATE_SPACE = {
    **{"mamba_n_heads": 8, "mamba_num_heads": 8, "mamba_d_head": 16, "mamba_head_dim": 16, "mamba_expand": 2},
    **{"mamba_d_state": 8, "mamba_n_groups": 1, "ssm_state_size": 8, "state_size": 8, "mamba_d_ssm": 128},
    **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32}
OTHERS = {
    **{"num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16, "num_global_key_value_heads": 2},
    **{"vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 16},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "type_vocab_size": 2},
    **{"entity_vocab_size": 32, "encoder_hash_byte_group_vocab": 96},
    **{"hidden_dropout": 0.0, "attention_dropout": 0.0, "laurel_rank": 8, "num_kv_shared_layers": 0},
}
SIZES: dict[str, Any] = WIDTH | dict.fromkeys(FOUR, 4) | POSITIONS | EXPERTS | STATE_SPACE | LATENT | OTHERS

# Entries that a family needs besides these sizes.
OWN: dict[str, dict[str, Any]] = {
    "gemma3_text": {"layer_types": [*["sliding_attention"] * 3, "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8},
    "esmc": {"num_key_value_heads": 4},
    "mamba2": {"num_heads": 8},
    "zaya": {"num_experts_per_tok": 1, "layer_types": ["hybrid", "hybrid_sliding"] * 2},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        **{"attention_head_dim": 32, "num_key_value_heads": 4},
    },
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "perceiver": {"d_latents": 64, "num_latents": 16, "num_self_attends_per_block": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8},
    "bamba": {"attn_layer_indices": [1, 3]},
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 48},  # unlike the layers
    "electra": {"embedding_size": 32},
    "albert": {"embedding_size": 32},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "attention"]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
}


def tiny_config(model_type: str, **options: Any) -> Any:
    """A small configuration of a family; ``options`` apply if the family has them."""
    return tiny_config_of(CONFIG_MAPPING[model_type], **options)


def tiny_config_of(cls: type[PreTrainedConfig], **options: Any) -> Any:
    """A small configuration of a class, with small configurations of its parts."""
    known = set(getattr(cls, "__dataclass_fields__", ())) | set(inspect.signature(cls.__init__).parameters)
    sizes = {name: size for name, size in SIZES.items() if name in known}
    for name, own in getattr(cls, "attribute_map", {}).items():
        if name in SIZES and own in known:
            sizes.setdefault(own, SIZES[name])
    if "kv_lora_rank" in known and "num_key_value_heads" in sizes:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    own = OWN.get(cls.model_type, {}) | {name: value for name, value in options.items() if name in known}
    return cls(**(sizes | tiny_parts(cls, **options) | own))


def tiny_parts(cls: type[PreTrainedConfig], **options: Any) -> dict[str, Any]:
    """Small configurations of a model's parts, such as a vision tower."""
    if not cls.sub_configs:
        return {}
    parts = {name: getattr(cls(), name, None) for name in cls.sub_configs}
    return {name: tiny_config_of(type(part), **options) for name, part in parts.items() if part is not None}


def tiny(model_type: str, *, masked: bool = False, **options: Any) -> PreTrainedModel:
    """A tiny model of a family in evaluation mode, with uneven attention."""
    names = (
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES if masked else modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    )
    return random_model(
        names[model_type], tiny_config(model_type, **({} if masked else {"is_decoder": True}), **options)
    )


def tiny_encoder_decoder(model_type: str, **options: Any) -> PreTrainedModel:
    """A tiny encoder–decoder of a family, with fewer layers in the decoder."""
    name = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[model_type]
    sizes = {"encoder_layers": 3, "decoder_layers": 2, "num_layers": 3, "num_decoder_layers": 2, "d_kv": 16} | options
    return random_model(name, tiny_config(model_type, **sizes))


def random_model(name: Any, config: Any) -> PreTrainedModel:
    """A model of a class by name, with random weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, name if isinstance(name, str) else name[0])(config).eval()
        with torch.no_grad():
            for module in model.modules():
                _spread(module)
    return model


def _spread(module: nn.Module) -> None:
    for weight in module._parameters.values():
        if weight is not None and weight.ndim >= 2:
            weight.normal_(std=0.6 / math.sqrt(weight.shape[-1]))
        elif weight is not None and "Norm" in type(module).__name__:
            weight.add_(0.1 * torch.randn_like(weight))


def tokens(length: int, rows: int = 2) -> Tensor:
    """Random token ids ``[rows, length]``, without special tokens."""
    return torch.randint(3, VOCABULARY - 1, (rows, length), generator=torch.Generator().manual_seed(3))


def padded(ids: Tensor, by: int = 5, *, left: bool = True) -> tuple[Tensor, Tensor]:
    """Ids with padding on one side, and their mask."""
    sides = (by, 0) if left else (0, by)
    return nn.functional.pad(ids, sides), nn.functional.pad(torch.ones_like(ids), sides)


def logits(model: nn.Module, ids: Tensor, **call: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, **call).logits


def cached(model: PreTrainedModel, ids: Tensor, first: int, chunk: int = 1, mask: Tensor | None = None) -> Tensor:
    """Logits of a text that is read in chunks with a KV cache."""
    past, found = None, []
    for start, end in [(0, first), *((at, at + chunk) for at in range(first, ids.shape[1], chunk))]:
        call = {} if mask is None else {"attention_mask": mask[:, :end]}
        with torch.no_grad():
            out = model(input_ids=ids[:, start:end], past_key_values=past, use_cache=True, **call)
        past = out.past_key_values
        found.append(out.logits)
    return torch.cat(found, dim=1)


def gap(output: Tensor, expected: Tensor) -> float:
    """Largest difference of two outputs, in standard deviations of ``expected``."""
    return float((output - expected).abs().max() / expected.std())
