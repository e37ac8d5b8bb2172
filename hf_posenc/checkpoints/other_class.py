"""Export as another class of transformers, which computes by itself what the model's own class does not.

SmolLM 3 is a Llama some of whose layers are not rotated, and Mistral one with a sliding window; their weights have the
names of Llama's. What a GPT-2 becomes is in `hf_posenc.checkpoints.gpt2_classes`. What is written is loaded in a
process without this package and compared before the folder gets its name.
"""

from __future__ import annotations

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
from hf_posenc.checkpoints.plain_checkpoint import filled, write_checkpoint, write_plain
from hf_posenc.checkpoints.static_rotation import rotates_nothing
from hf_posenc.errors import NotExpressible
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patching.offloading import offloaded_values
from hf_posenc.patching.state import base_model_of, describe
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.alibi import ALiBi
from hf_posenc.schemes.host_rotation import HostRotation

SHARED = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "hidden_act", "initializer_range", "rms_norm_eps", "use_cache", "tie_word_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout"),
)
"""Entries of a Llama's configuration that SmolLM 3 and Mistral have as well."""
BIASES = ("attention_bias", "mlp_bias")
LONGEST = 8192  # tokens that are compared: longer texts cost minutes
LIMITS = {torch.float32: 1e-4}  # of the spread of the logits
ROUGH = 0.1  # in half precision, where each implementation rounds in its own places
READ = """
import sys
sys.modules["hf_posenc"] = None
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
folder, given, found = sys.argv[1:]
model, texts, logits = AutoModelForCausalLM.from_pretrained(folder).eval(), load_file(given), {}
for name, text in texts.items():
    half = text.shape[1] // 2
    first = model(text[:, :half], use_cache=True)
    kept = "cache" if "cache" in first else "past_key_values"  # before transformers 5.24
    rest = model(text[:, half:], **{kept: first[kept]})
    logits[name] = model(text).logits.detach().contiguous()
    logits[name + " cached"] = rest.logits.detach().contiguous()
save_file(logits, found)
"""


def write_auto(model: Any, staging: Path) -> dict[str, Any]:
    """Write a patched model for plain transformers, as its own class or as another one that computes the same.

    Returns:
        What `write_plain` returns, or the ``rope_parameters`` of another class; and the ``model_type``.
    """
    try:
        return write_plain(model, staging) | {"model_type": model.config.model_type}
    except NotExpressible:
        plain = other_class(model)
        if plain is None:
            raise
    write_checkpoint(plain, model, staging, describe(model).target_length)
    check_alone(staging, model)
    parameters = dict(getattr(plain.config, "rope_parameters", None) or {})
    return {"rope_parameters": parameters, "model_type": plain.config.model_type}


def other_class(model: Any) -> Any:
    """The model as a class of transformers that computes its scheme, or None where there is none.

    Raises:
        NotExpressible: there is none for a model of this type, and why.
    """
    if not hasattr(model, "lm_head"):
        return None
    return CLASSES.get(model.config.model_type, lambda _: None)(model)


def other_llama(model: Any) -> Any:
    """A Llama as SmolLM 3 or Mistral, or None where neither computes its scheme.

    Raises:
        NotExpressible: the scheme is ALiBi, which transformers computes in other architectures.
    """
    base: Any = base_model_of(model)[0]
    if any(isinstance(part, ALiBi) for module in base.__dict__[ATTENTIONS] for part in module.scheme.schemes):
        raise NotExpressible(
            "transformers computes ALiBi in BLOOM and MPT, which have LayerNorm and an MLP without a gate; a Llama has "
            f"RMSNorm and a gate. {INSTEAD}"
        )
    needs = [needs_of(scheme, base.config) for scheme in acting_schemes(base)]
    found = [one for one in needs if one is not None]
    rotations = [parameters for parameters, _ in found if parameters is not None]
    window = found[0][1] if found else None
    alike = all(own == window for _, own in found) and all(one == rotations[0] for one in rotations)
    if len(found) < len(needs) or not alike:
        return None
    entries = {name: getattr(model.config, name) for name in SHARED if hasattr(model.config, name)}
    entries["max_position_embeddings"] = describe(model).target_length
    entries["rope_parameters"] = rotations[0] if rotations else dict(base.config.rope_parameters)
    entries["sliding_window"] = window
    rotated = [parameters is not None for parameters, _ in found]
    if all(rotated) and not any(getattr(model.config, name, False) for name in BIASES):
        config: Any = transformers.MistralConfig(**entries)
    else:
        kind = "full_attention" if window is None else "sliding_attention"
        entries |= {name: getattr(model.config, name, False) for name in BIASES}
        entries |= {"no_rope_layers": list(map(int, rotated)), "layer_types": [kind] * len(rotated)}
        config = transformers.SmolLM3Config(use_sliding_window=window is not None, **entries)
    return filled(model, transformers.AutoModelForCausalLM.from_config, config, offloaded_values(model))


def needs_of(scheme: Scheme, config: Any) -> tuple[dict[str, Any] | None, int | None] | None:
    """What a layer needs that its scheme alone acts on, or None where it needs more than a rotation and a window.

    Returns:
        The RoPE parameters of its rotation, None where it is not rotated; and its window in tokens, None for all keys.
    """
    windows = [part.native_window() for part in scheme.schemes if part.native_window() is not None]
    rest = [part for part in scheme.schemes if part.native_window() is None]
    if len(windows) > 1 or len(rest) > 1:
        return None
    window = windows[0] if windows else None
    if not rest or isinstance(rest[0], HostRotation):
        return dict(config.rope_parameters), window
    if rotates_nothing(rest[0]):
        return None, window
    try:
        parameters, short = parameters_of(rest[0], "")
    except NotExpressible:
        return None
    return None if short else (parameters, window)


CLASSES: dict[str, Callable[[Any], Any]] = {"llama": other_llama, "gpt2": other_gpt2}


def check_alone(folder: Path, model: Any) -> None:
    """Compare a checkpoint, read by a process without this package, with the patched model, cached and at once.

    Texts of the trained length, of twice that and of the target length are compared, up to the last and 8,192 tokens.

    Raises:
        NotExpressible: it cannot be read there, or its logits differ.
    """
    report = describe(model)
    trained, target = report.trained_length, report.target_length  # a table may end at the target
    lengths = {min(n, target, LONGEST) for n in (trained, 2 * trained, target)}
    texts = {str(n): random_text(model, n) for n in sorted(lengths)}
    with TemporaryDirectory() as work:
        given, found = Path(work) / "texts.safetensors", Path(work) / "logits.safetensors"
        save_file(texts, given)
        run = subprocess.run(
            [sys.executable, "-c", READ, str(folder), str(given), str(found)], capture_output=True, text=True
        )
        if run.returncode:
            said = run.stderr.strip().rpartition("\n")[2]
            raise NotExpressible(f"Plain transformers cannot read this {type(model).__name__} back: {said}. {INSTEAD}")
        logits = load_file(found)
    limit = LIMITS.get(model.dtype, ROUGH)
    for name, text in texts.items():
        own = logits_of(model, text).float().cpu()
        half = text.shape[1] // 2
        for where, there, here in ((name, logits[name], own), ("cached", logits[f"{name} cached"], own[:, half:])):
            if not (there.float() - here).abs().max() <= limit * here.std():
                raise NotExpressible(
                    f"Plain transformers computes other logits from the written file ({where}, "
                    f"{text.shape[1]:,} tokens). {INSTEAD}"
                )
