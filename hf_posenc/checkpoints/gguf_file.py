"""Write a patched Llama as one GGUF file for llama.cpp and the programs built on it.

Any rotation of fixed frequencies can be written. It becomes llama.cpp's ``linear`` or ``yarn`` if their formulas give
the same frequencies. Otherwise it becomes the tensor ``rope_freqs``, by which llama.cpp divides each frequency. The
temperature becomes ``rope.scaling.attn_factor``, which llama.cpp reads for every type. Every tensor is read back and
compared before the file gets its name.

GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Rotation: ``ggml_rope_ext`` in ``ggml-cpu/ops.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_posenc.checkpoints.gguf_tokenizer import write_tokenizer
from hf_posenc.checkpoints.native_parameters import acting_schemes
from hf_posenc.checkpoints.readers import llama_cpp
from hf_posenc.checkpoints.readers.stated import ExportedConfig
from hf_posenc.checkpoints.static_rotation import amplitude, divisors, static_rotation
from hf_posenc.errors import MissingPackage, NotExpressible
from hf_posenc.patching.offloading import offloaded_values
from hf_posenc.patching.state import base_model_of, describe

if TYPE_CHECKING:
    import numpy as np

    from hf_posenc.schemes.base import Scheme

FILE = "model.gguf"
MODEL_TYPES = ("llama", "mistral")
"""Model types of transformers that llama.cpp runs as its architecture ``llama``."""
TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
DIVISORS = "freqs"
OF_TYPE: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"scaling_factor": "factor"},
    "yarn": {
        "scaling_factor": "factor", "scaling_orig_ctx_len": "original_max_position_embeddings",
        "scaling_yarn_beta_fast": "beta_fast", "scaling_yarn_beta_slow": "beta_slow",
    },
}  # fmt: skip
"""RoPE types of llama.cpp: maps GGUF's name of each parameter to transformers' name."""
INSTEAD = "Export it in another format, or use the checkpoint that save_pretrained writes."


def write_gguf(model: Any, staging: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Write a patched Llama or Mistral as `FILE`, in the dtype of the model, and return the rotation written.

    Without a tokenizer that llama.cpp can represent, the file takes token ids only.
    """
    try:
        import gguf
    except ImportError as error:
        raise MissingPackage("The package gguf is not installed. Install it with: pip install gguf") from error
    check_llama(model)
    rope = rope_of(model)
    file = staging / FILE
    writer = gguf.GGUFWriter(file, "llama")
    write_config(writer, model, rope)
    write_tokenizer(writer, tokenizer, model.config.vocab_size)
    for name, values, dtype in tensors_of(model, rope):
        writer.add_tensor(name, values, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    check_read_back(file, model, rope)
    return {"gguf": rope}


def check_llama(model: Any) -> None:
    """Refuse models that llama.cpp cannot run as its architecture ``llama``."""
    config, this = model.config, f"This {type(model).__name__}"
    if config.model_type not in MODEL_TYPES or not hasattr(model, "lm_head"):
        raise NotExpressible(f"{this} is not a causal Llama or Mistral, and only these are written to GGUF. {INSTEAD}")
    if getattr(config, "sliding_window", None):
        raise NotExpressible(f"{this} has a sliding window, which llama.cpp's 'llama' does not have. {INSTEAD}")
    if model.dtype not in TYPES:
        raise NotExpressible(
            f"{this} is in {model.dtype}. Load it in float32, float16 or bfloat16; llama.cpp's llama-quantize makes "
            "the file smaller."
        )


def rope_of(model: Any) -> dict[str, Any]:
    """The GGUF entries for the rotation of a patched model.

    Raises:
        NotExpressible: the layers do not all rotate by the same fixed frequencies.
    """
    first, *others = (gguf_rope(scheme) for scheme in dict.fromkeys(acting_schemes(base_model_of(model)[0])))
    if first is None or any(rope != first for rope in others):
        raise NotExpressible(
            f"Scheme {describe(model).scheme!r} does not rotate all layers by the same fixed frequencies, as "
            f"llama.cpp's 'llama' does. {INSTEAD}"
        )
    return first


def gguf_rope(scheme: Scheme) -> dict[str, Any] | None:
    """The GGUF entries for the rotation of a scheme, or None if the scheme does more than rotate by fixed frequencies.

    Returns:
        Maps each suffix of `gguf.GGUFWriter.add_rope_…` to its value. `DIVISORS` maps to the divisors of the
        frequencies, if no RoPE type of llama.cpp gives them.
    """
    rotation, rotary = static_rotation(scheme), scheme.geometry.rotary
    if rotation is None or rotation.layout != "half" or rotary is None:
        return None
    scale, native = amplitude(scheme, rotation), scheme.native()
    by_divisors = {
        "freq_base": rotary.base, "scaling_type": "none", "scaling_attn_factors": scale,
        DIVISORS: divisors(rotation, rotary.base),
    }  # fmt: skip
    if native is None or native["rope_type"] not in OF_TYPE or not isinstance(rotation.frequencies, tuple):
        return by_divisors
    kind = native["rope_type"]
    read = llama_cpp.read(ExportedConfig(native, "llama", rotation.dims, False, 1, 1))
    if any(abs(a - b) > 1e-6 * b for a, b in zip(read.frequencies, rotation.frequencies, strict=True)):
        return by_divisors
    return {
        "freq_base": native["rope_theta"], "scaling_type": "none" if kind == "default" else kind,
        "scaling_attn_factors": scale / read.amplitude,
        **{name: native[key] for name, key in OF_TYPE[kind].items()},
    }  # fmt: skip


def write_config(writer: Any, model: Any, rope: dict[str, Any]) -> None:
    """Write the metadata that llama.cpp needs besides the weights."""
    import gguf

    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(os.path.basename(config.name_or_path or "") or type(model).__name__)
    writer.add_description(f"Position scheme: {describe(model).scheme}, written by hf_posenc")
    dtype = TYPES[model.dtype]
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if dtype == "F32" else f"MOSTLY_{dtype}"])
    writer.add_context_length(describe(model).target_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(head_dim)
    for key, value in rope.items():
        if key != DIVISORS:
            getattr(writer, f"add_rope_{key}")(gguf.RopeScalingType(value) if key == "scaling_type" else value)


def tensors_of(model: Any, rope: dict[str, Any]) -> Iterator[tuple[str, np.ndarray, Any]]:
    """Name, values and type of every tensor of the file. Norms and biases are float32, as llama.cpp computes them."""
    import gguf
    import numpy as np

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    for name, tensor in offloaded_values(model).items():
        if ".posenc." in name or (tied and name == "lm_head.weight"):
            continue
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if gguf_name is None:
            raise NotExpressible(f"llama.cpp's 'llama' has no tensor for {name!r} of this model. {INSTEAD}")
        kind = gguf.GGMLQuantizationType[TYPES[model.dtype] if tensor.dim() > 1 else "F32"]
        yield gguf_name, gguf.quantize(in_neighbouring_pairs(name, tensor, model.config).float().numpy(), kind), kind
    if DIVISORS in rope:
        yield "rope_freqs.weight", np.array(rope[DIVISORS], dtype=np.float32), gguf.GGMLQuantizationType.F32


def in_neighbouring_pairs(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Move the channels of each rotated pair of a query or key projection side by side, as llama.cpp rotates them."""
    tensor = tensor.detach().cpu()
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


def check_read_back(file: Path, model: Any, rope: dict[str, Any]) -> None:
    """Read the file and compare every tensor with the one that should be in it."""
    import gguf
    import numpy as np

    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    for name, values, kind in tensors_of(model, rope):
        tensor = stored.pop(name, None)
        if tensor is None or tensor.tensor_type != kind or not np.array_equal(tensor.data, values):
            raise NotExpressible(f"The tensor {name!r} was not read back from GGUF as it was written. Write it again.")
    assert not stored, "the file has no other tensors"
