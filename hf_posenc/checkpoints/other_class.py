"""Export as another class of transformers that computes the scheme, if the model's own class cannot.

SmolLM 3 is a Llama with some layers unrotated, and Mistral is a Llama with a sliding window. Their weights have the
same names. `hf_posenc.checkpoints.gpt2_classes` converts a GPT-2. The written model is loaded in a process without this
package and compared before the folder gets its name.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from hf_posenc.checkpoints.gpt2_classes import other_gpt2
from hf_posenc.checkpoints.logits import logits_of, random_text
from hf_posenc.checkpoints.native_parameters import INSTEAD, acting_schemes, parameters_of
from hf_posenc.checkpoints.plain_checkpoint import with_weights, write_checkpoint, write_plain
from hf_posenc.checkpoints.static_rotation import rotates_nothing
from hf_posenc.core.torch_state import evaluation_mode
from hf_posenc.errors import NotExpressible
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patching.offloading import offloaded_values, offloads_of
from hf_posenc.patching.state import base_model_of, describe
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.alibi import ALiBi
from hf_posenc.schemes.host_rotation import HostRotation

SHARED = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "hidden_act", "initializer_range", "rms_norm_eps", "use_cache", "tie_word_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout"),
)
"""Entries of a Llama's configuration that SmolLM 3 and Mistral share."""
BIASES = ("attention_bias", "mlp_bias")
LONGEST = 8192  # longest compared text in tokens, because longer ones take minutes
LIMITS = {torch.float32: 1e-4}  # largest difference, relative to the standard deviation of the logits
ROUGH = 0.1  # the same for offloaded weights in half precision, where implementations round at different steps
READ = """
import sys
sys.modules["hf_posenc"] = None
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
folder, texts_file, logits_file, dtype = sys.argv[1:]
model, texts, logits = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval(), load_file(texts_file), {}
for name, text in texts.items():
    half = text.shape[1] // 2
    first = model(text[:, :half], use_cache=True)
    cache = "cache" if "cache" in first else "past_key_values"  # before transformers 5.24
    second = model(text[:, half:], **{cache: first[cache]})
    logits[name] = model(text).logits.detach().contiguous()
    logits[name + " cached"] = second.logits.detach().contiguous()
save_file(logits, logits_file)
"""


def write_auto(model: Any, staging: Path) -> dict[str, Any]:
    """Write a patched model for plain transformers, as its own class or as another class that computes the scheme.

    Returns:
        The entries of `write_plain`, or the ``rope_parameters`` of another class; and the ``model_type``.
    """
    try:
        return write_plain(model, staging) | {"model_type": model.config.model_type}
    except NotExpressible:
        convert = CLASSES.get(model.config.model_type)
        plain = convert(model) if convert is not None and hasattr(model, "lm_head") else None
        if plain is None:
            raise
    write_checkpoint(plain, model, staging, describe(model).target_length)
    check_alone(staging, model)
    parameters = dict(getattr(plain.config, "rope_parameters", None) or {})
    return {"rope_parameters": parameters, "model_type": plain.config.model_type}


def other_llama(model: Any) -> Any:
    """A Llama as SmolLM 3 or Mistral, or None if neither computes its scheme.

    Raises:
        NotExpressible: the scheme is ALiBi, which transformers computes only in other architectures.
    """
    base: Any = base_model_of(model)[0]
    if any(isinstance(part, ALiBi) for module in base.__dict__[ATTENTIONS] for part in module.scheme.schemes):
        raise NotExpressible(
            "transformers computes ALiBi in BLOOM and MPT, which have LayerNorm and an MLP without a gate; a Llama has "
            f"RMSNorm and a gate. {INSTEAD}"
        )
    layers = [rotation_and_window(scheme, base.config) for scheme in acting_schemes(base)]
    expressible = [layer for layer in layers if layer is not None]
    if len(expressible) < len(layers):
        return None
    rotations = [parameters for parameters, _ in expressible if parameters is not None]
    window = expressible[0][1]
    if any(own != window for _, own in expressible) or any(own != rotations[0] for own in rotations):
        return None
    entries = {name: getattr(model.config, name) for name in SHARED if hasattr(model.config, name)}
    entries["max_position_embeddings"] = describe(model).target_length
    entries["rope_parameters"] = rotations[0] if rotations else dict(base.config.rope_parameters)
    entries["sliding_window"] = window
    rotated = [parameters is not None for parameters, _ in expressible]
    if all(rotated) and not any(getattr(model.config, name, False) for name in BIASES):
        config: Any = transformers.MistralConfig(**entries)
    else:
        kind = "full_attention" if window is None else "sliding_attention"
        entries |= {name: getattr(model.config, name, False) for name in BIASES}
        entries |= {"no_rope_layers": list(map(int, rotated)), "layer_types": [kind] * len(rotated)}
        config = transformers.SmolLM3Config(use_sliding_window=window is not None, **entries)
    return with_weights(model, transformers.AutoModelForCausalLM.from_config, config, offloaded_values(model))


def rotation_and_window(scheme: Scheme, config: Any) -> tuple[dict[str, Any] | None, int | None] | None:
    """The rotation and the window of a layer with this scheme, or None if the scheme does more than that.

    Returns:
        The RoPE parameters, or None for no rotation; and the window in tokens, or None for all keys.
    """
    windows = [part.native_window() for part in scheme.schemes if part.native_window() is not None]
    others = [part for part in scheme.schemes if part.native_window() is None]
    if len(windows) > 1 or len(others) > 1:
        return None
    window = windows[0] if windows else None
    if not others or isinstance(others[0], HostRotation):
        return dict(config.rope_parameters), window
    if rotates_nothing(others[0]):
        return None, window
    try:
        parameters, short = parameters_of(others[0], "")
    except NotExpressible:
        return None
    return None if short else (parameters, window)


CLASSES: dict[str, Callable[[Any], Any]] = {"llama": other_llama, "gpt2": other_gpt2}
"""Model type → function that converts a model into another class; it returns None, or raises, if no class fits."""


def check_alone(folder: Path, model: Any) -> None:
    """Load a checkpoint in a process without this package, and compare its logits with those of the patched model.

    The texts have the trained length, twice that and the target length, but no more than that and 8,192 tokens. Each is
    read at once, and in two pieces with a KV cache. Both models compute in float32, which rounds no difference away,
    unless the weights are offloaded.

    Raises:
        NotExpressible: transformers cannot load it, or its logits differ.
    """
    report = describe(model)
    trained, target = report.trained_length, report.target_length  # a table may end at the target
    lengths = {min(n, target, LONGEST) for n in (trained, 2 * trained, target)}
    texts = {str(n): random_text(model, n) for n in sorted(lengths)}
    dtype = model.dtype if offloads_of(model) else torch.float32
    with TemporaryDirectory() as work:
        texts_file, logits_file = Path(work) / "texts.safetensors", Path(work) / "logits.safetensors"
        save_file(texts, texts_file)
        command = [sys.executable, "-c", READ, str(folder), str(texts_file), str(logits_file)]
        run = subprocess.run([*command, str(dtype).removeprefix("torch.")], capture_output=True, text=True)
        if run.returncode:
            reason = run.stderr.strip().rpartition("\n")[2]
            raise NotExpressible(f"Plain transformers cannot load this {type(model).__name__}: {reason}. {INSTEAD}")
        logits = load_file(logits_file)
    limit = LIMITS.get(dtype, ROUGH)
    exact = model if model.dtype == dtype else copy.deepcopy(model).to(dtype)
    for name, text in texts.items():
        with evaluation_mode(exact):
            own = logits_of(exact, text).float().cpu()
        for kind, start in (("", 0), (" cached", text.shape[1] // 2)):
            expected = own[:, start:]
            if not (logits[name + kind].float() - expected).abs().max() <= limit * expected.std():
                raise NotExpressible(
                    f"Plain transformers computes other logits from the written file ({name}{kind} tokens). {INSTEAD}"
                )
