"""Convert a patched GPT-2 into another class of transformers that computes the same scheme exactly.

- A scheme that adds a vector to the embeddings: a GPT-2 whose position table holds these vectors up to the target
  length.
- A rotation of fixed frequencies, or no positions at all: a GPT-NeoX with sequential residuals.
- ALiBi with the released slopes: a BLOOM. BLOOM normalises its embeddings, and GPT-2 does not. So they are written so
  small that ε outweighs their variance, and the norm's weight scales them up again. The norm still subtracts their
  mean, but the later norms subtract it anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor

from hf_posenc.checkpoints.native_parameters import INSTEAD, acting_schemes
from hf_posenc.checkpoints.plain_checkpoint import with_weights
from hf_posenc.checkpoints.plain_config import explained_refusal
from hf_posenc.checkpoints.static_rotation import HOOKS, longrope
from hf_posenc.core.geometry import Rotation
from hf_posenc.errors import NotExpressible
from hf_posenc.patching.config_guard import PATCH_KEYS
from hf_posenc.patching.offloading import offloaded_values
from hf_posenc.patching.state import base_model_of, describe
from hf_posenc.schemes.base import Scheme, implements
from hf_posenc.schemes.bias.alibi import ALiBi, code_slopes
from hf_posenc.schemes.host_rotation import HostRotation

ACTING = frozenset([*HOOKS, "read_table", "extra_key_channels", "rotation"])
GROWN = 2.0**13  # scales BLOOM's embeddings: their variance becomes 2⁻²⁶ ε times the old, below float32's rounding
THETA = 10_000.0
NOT_MPT = "MPT, which has ALiBi as well, has no biases in its layers, and GPT-2 has."
FROM_CONFIG = transformers.AutoModelForCausalLM.from_config
BLOCKS = {
    "ln_1": "input_layernorm", "attn.c_attn": "{attention}.query_key_value", "attn.c_proj": "{attention}.dense",
    "ln_2": "post_attention_layernorm", "mlp.c_fc": "mlp.dense_h_to_4h", "mlp.c_proj": "mlp.dense_4h_to_h",
}  # fmt: skip
"""Maps the modules of a GPT-2 block to their names in BLOOM and GPT-NeoX."""


def other_gpt2(model: Any) -> Any:
    """The model as a GPT-2, GPT-NeoX or BLOOM that computes its scheme.

    Raises:
        NotExpressible: none of these computes it, or only some layers have the scheme.
    """
    schemes = dict.fromkeys(acting_schemes(base_model_of(model)[0]))
    name = describe(model).scheme
    if len({scheme.shown_name for scheme in schemes}) != 1:
        raise NotExpressible(
            f"Some layers lack scheme {name!r}, and GPT-2, GPT-NeoX and BLOOM have one scheme for all layers. {INSTEAD}"
        )
    scheme, *others = schemes
    unchanged = isinstance(scheme, HostRotation)  # GPT-2's own table: it has no rotation
    hooks = set() if unchanged else {hook for hook in ACTING if implements(scheme, hook)}
    if (hooks or scheme.keeps_table) and hooks <= {"embed", "read_table"} and not scheme.needs_whole_text:
        return with_table(model, scheme)
    if hooks <= {"rotation"} and not others:
        return as_gpt_neox(model, scheme)
    if hooks == {"bias"} and isinstance(scheme, ALiBi) and not others:
        return as_bloom(model, scheme)
    raise NotExpressible(
        f"Neither GPT-2, GPT-NeoX nor BLOOM computes scheme {name!r}: they have a table of positions, a rotation of "
        f"fixed frequencies, and ALiBi. {INSTEAD}"
    )


def with_table(model: Any, scheme: Scheme) -> Any:
    """A GPT-2 whose table has the scheme's codes up to the target length, or its own table if the scheme keeps that."""
    weights = own_weights(model)
    table = weights["transformer.wpe.weight"]
    positions = torch.arange(describe(model).target_length, device=table.device)[None]
    with torch.no_grad():
        codes = scheme.read_table(table, positions) if implements(scheme, "read_table") else scheme.embed(positions)
    rows = table if codes is None else codes[0].to(table.dtype)
    entries = {name: value for name, value in model.config.to_dict().items() if name not in PATCH_KEYS}
    config = transformers.GPT2Config(**entries | {"n_positions": len(rows)})
    return with_weights(model, FROM_CONFIG, config, weights | {"transformer.wpe.weight": rows})


def as_gpt_neox(model: Any, scheme: Scheme) -> Any:
    """The GPT-2 as a GPT-NeoX that rotates as the scheme does."""
    check_scaling(model.config, "GPT-NeoX")
    parameters = rotated_by(scheme, describe(model).scheme)
    config = transformers.GPTNeoXConfig(
        intermediate_size=model.config.n_inner or 4 * model.config.n_embd,
        hidden_act=model.config.activation_function,
        layer_norm_eps=model.config.layer_norm_epsilon,
        use_parallel_residual=False,
        max_position_embeddings=describe(model).target_length,
        rope_parameters=parameters,
        **shared_entries(model.config),
    )
    names = {"transformer.wte": "gpt_neox.embed_in", "transformer.ln_f": "gpt_neox.final_layer_norm"}
    with explained_refusal(parameters):  # older classes always rotate a quarter of a head
        return with_weights(model, FROM_CONFIG, config, renamed(model, names, "gpt_neox.layers", "attention"))


def as_bloom(model: Any, scheme: ALiBi) -> Any:
    """The GPT-2 with ALiBi as a BLOOM."""
    own = model.config
    check_scaling(own, "BLOOM")
    if own.n_inner not in (None, 4 * own.n_embd) or own.activation_function not in ("gelu_new", "gelu_pytorch_tanh"):
        raise NotExpressible(
            f"BLOOM's MLP is four times as wide as the model, with GELU by tanh; this one has n_inner={own.n_inner} "
            f"and {own.activation_function!r}. {NOT_MPT} {INSTEAD}"
        )
    slopes = scheme.log_slopes.exp().tolist() if scheme.log_slopes is not None else scheme.slopes
    released = [slope * scheme.interpolate for slope in code_slopes(own.n_head)]
    if any(abs(slope - expected) > 1e-6 * expected for slope, expected in zip(slopes, released, strict=True)):
        raise NotExpressible(
            f"BLOOM computes ALiBi only with the released slopes, and this model has others. {NOT_MPT} {INSTEAD}"
        )
    if model.dtype != torch.float32:
        raise NotExpressible(
            f"BLOOM normalises its embeddings, which only float32 can undo, and this model is in {model.dtype}. "
            f"Load it in float32. {NOT_MPT}"
        )
    names = {"transformer.wte": "transformer.word_embeddings", "transformer.ln_f": "transformer.ln_f"}
    weights = renamed(model, names, "transformer.h", "self_attention")
    embeddings = "transformer.word_embeddings"
    weights[f"{embeddings}.weight"] = weights[f"{embeddings}.weight"] * (own.layer_norm_epsilon**0.5 / GROWN)
    weights[f"{embeddings}_layernorm.weight"] = torch.full((own.n_embd,), GROWN)
    weights[f"{embeddings}_layernorm.bias"] = torch.zeros(own.n_embd)
    entries = shared_entries(own) | {"tie_word_embeddings": False}
    config = transformers.BloomConfig(layer_norm_epsilon=own.layer_norm_epsilon, **entries)
    return with_weights(model, FROM_CONFIG, config, weights)


def check_scaling(config: Any, name: str) -> None:
    """Refuse models with cross-attention, or that scale their scores by anything but the width of a head."""
    if not config.scale_attn_weights or config.scale_attn_by_inverse_layer_idx or config.add_cross_attention:
        raise NotExpressible(
            f"{name} scales scores by the width of a head and has no cross-attention. This GPT-2 has "
            f"scale_attn_weights={config.scale_attn_weights}, scale_attn_by_inverse_layer_idx="
            f"{config.scale_attn_by_inverse_layer_idx}, add_cross_attention={config.add_cross_attention}. {INSTEAD}"
        )


def rotated_by(scheme: Scheme, name: str) -> dict[str, Any]:
    """The ``rope_parameters`` of a GPT-NeoX that rotates as the scheme does, or not at all.

    Raises:
        NotExpressible: the scheme does not rotate channel m with m + d/2 by fixed frequencies.
    """
    geometry = scheme.geometry
    rotation = scheme.rotation() or Rotation((0.0,) * (geometry.head_dim // 2))
    scale = scheme.logit_scale()
    ordinary = rotation.layout == "half" and not (rotation.values or rotation.decay or rotation.axes)
    if not ordinary or (rotation.dims < geometry.head_dim and (scale, rotation.amplitude) != (1.0, 1.0)):
        raise NotExpressible(
            f"GPT-NeoX rotates channel m with m + d/2 by fixed frequencies, and {name!r} does not. {INSTEAD}"
        )
    share = {"partial_rotary_factor": rotation.dims / geometry.head_dim}
    native = scheme.native()
    if native is not None:
        return share | native
    return share | longrope(rotation, THETA, scale**0.5 * rotation.amplitude, geometry)


def shared_entries(config: Any) -> dict[str, Any]:
    """Entries of a GPT-2's configuration that BLOOM and GPT-NeoX share."""
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range", "use_cache",
             "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")  # fmt: skip
    dropout = {"attention_dropout": config.attn_pdrop, "hidden_dropout": config.resid_pdrop}
    return {name: getattr(config, name) for name in names} | dropout


def own_weights(model: Any) -> dict[str, Tensor]:
    """The weights of a model without the parameters of its scheme."""
    return {name: value for name, value in offloaded_values(model).items() if ".posenc." not in name}


def renamed(model: Any, names: Mapping[str, str], blocks: str, attention: str) -> dict[str, Tensor]:
    """The weights of a GPT-2 under the names of another class, with queries, keys and values interleaved by head."""
    weights = {}
    for name, weight in own_weights(model).items():
        module, _, kind = name.rpartition(".")
        block = re.fullmatch(r"transformer\.h\.(\d+)\.(.+)", module)
        if block and block[2] in BLOCKS:
            if ".c_" in module and kind == "weight":
                weight = weight.T  # a Conv1D has the transpose of a Linear's weight
            if module.endswith("c_attn"):
                weight = weight.unflatten(0, (3, model.config.n_head, -1)).transpose(0, 1).flatten(0, 2)
            module = f"{blocks}.{block[1]}.{BLOCKS[block[2]].format(attention=attention)}"
        weights[f"{names.get(module, module)}.{kind}"] = weight.contiguous()
    return weights
