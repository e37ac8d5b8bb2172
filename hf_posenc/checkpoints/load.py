"""Load checkpoints with the scheme they were saved with, bit-equal.

`save_pretrained` of a patched model writes the scheme into ``config.json`` (`hf_posenc.patching.scheme_config`), and
its learned parameters into the weights. Plain transformers would ignore both. So the model is built here with the
unpatched model's own length, and patched inside its constructor, before transformers loads the parameters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import nn

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.checkpoints.hub import with_hub_options
from hf_posenc.checkpoints.peft import attach_adapter
from hf_posenc.checkpoints.restore import load_weights
from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import CheckpointMismatch, MissingPackage, NotPatched, shown
from hf_posenc.patching.patch import patch_model
from hf_posenc.schemes.spec import SchemeSpec, option_names_of, parts_of_spec

Layers = Mapping[int | str, SchemeSpec] | Literal["all"] | None


@explained_imports()
def from_pretrained(
    name_or_path: str | os.PathLike[str],
    *,
    model_class: Any = None,
    scheme: SchemeSpec | None = None,
    factor: float | None = None,
    target_length: int | None = None,
    trained_length: int | None = None,
    layers: Layers = None,
    peft_adapter: str | os.PathLike[str] | None = None,
    **hf_kwargs: Any,
) -> nn.Module:
    """Load a model with the scheme that its checkpoint carries, or with ``scheme``.

    Args:
        name_or_path: a folder, a Hub name or ``"starter:llama"``. It leads to a model, to a PEFT adapter (its base is
            loaded too), or to a run of `hf_posenc.training.finetune`.
        model_class: a model class or an Auto class; by default the checkpoint's own architecture.
        scheme, factor, target_length, trained_length, layers: arguments of `patch_model`. They are refused if the
            checkpoint carries a scheme.
        peft_adapter: a PEFT adapter to load on top; the base gets the scheme of the adapter's sidecar.
        **hf_kwargs: options of ``scheme``; all others go to transformers. ``revision`` and ``subfolder`` apply to
            ``name_or_path``.

    Returns:
        The model, in evaluation mode; a `PeftModel` if a PEFT adapter was loaded.

    Raises:
        CheckpointMismatch: the scheme config cannot be read; the checkpoint carries a scheme, and ``scheme`` was
            passed too; or ``use_safetensors=False`` was passed.
        PeftAdapterMismatch: the PEFT adapter belongs to another scheme.
        ModelNotFound: there is no such model, or it cannot be downloaded.
        UnknownStarter: there is no bundled model of that name.
        HostConfigInvalid: lengths or RoPE parameters in the configuration are out of range.
        UnknownOption: neither the scheme nor transformers knows a keyword.
        WrongKind: the name is neither text nor a path.
        NotPatched: lengths or layers were passed without a scheme.
    """
    if hf_kwargs.get("use_safetensors", True) is False:
        raise CheckpointMismatch(
            "use_safetensors=False asks for pickled weights, which can run code when they are read. "
            "Load them with transformers, save them with save_pretrained, and pass that folder."
        )
    lengths: dict[str, Any] = {"factor": factor, "trained_length": trained_length, "target_length": target_length}
    options = {name: hf_kwargs.pop(name) for name in option_names(scheme) if name in hf_kwargs}
    checkpoint = Checkpoint.open(name_or_path, peft_adapter=peft_adapter, **hf_kwargs)
    check_requested_scheme(checkpoint, {"scheme": scheme, **options, **lengths, "layers": layers or None})
    chosen = checkpoint.model_class(model_class)
    keywords = {*option_names(scheme), *lengths, "layers", "dtype", "device_map", "revision"}
    if checkpoint.named.dtype is not None and not hf_kwargs.keys() & {"dtype", "torch_dtype"}:
        hf_kwargs["dtype"] = checkpoint.named.dtype
    hf_kwargs = with_hub_options(hf_kwargs, checkpoint.named.hub)
    model, info = load_weights(chosen, checkpoint.name, checkpoint.model_scheme, keywords=keywords, **hf_kwargs)

    loaded: nn.Module = model
    if checkpoint.adapter is not None:
        loaded = attach_adapter(model, checkpoint.adapter, patch=checkpoint.model_scheme is None)
    if checkpoint.scheme is None and scheme is not None:
        patch_model(loaded, scheme, layers=layers, **lengths, **options)
    return (loaded, info) if hf_kwargs.get("output_loading_info") else loaded  # type: ignore[return-value]


def check_requested_scheme(checkpoint: Checkpoint, requested: Mapping[str, Any]) -> None:
    """Refuse a scheme, lengths or layers for a checkpoint that carries a scheme, and lengths or layers without one."""
    passed = [f"{name} {shown(value)}" for name, value in requested.items() if value is not None]
    if passed and checkpoint.scheme is not None:
        raise CheckpointMismatch(
            f"{shown(checkpoint.named.adapter or checkpoint.name)} carries scheme {checkpoint.scheme}, and "
            f"{', '.join(passed)} was asked for. Leave that out; unpatch_model removes the scheme, and "
            "hf-posenc compare measures others on the same weights."
        )
    if passed and requested["scheme"] is None:
        raise NotPatched(
            f"{passed[0]} needs a scheme, and neither the call nor the checkpoint has one. Pass scheme (--scheme)."
        )


def option_names(spec: SchemeSpec | None) -> set[str]:
    """Names of all options of the schemes in ``spec``. Raises `UnknownScheme` if one is not registered."""
    return set() if spec is None else {name for cls, _ in parts_of_spec(spec) for name in option_names_of(cls)}


def four_bit_keywords() -> dict[str, Any]:
    """Keywords of ``from_pretrained`` for weights in 4 bits: NF4 with double quantisation, computed in bfloat16.

    Raises:
        MissingPackage: bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise MissingPackage(
            "Weights in 4 bits need bitsandbytes, which is not installed. Run: pip install bitsandbytes"
        )
    from transformers import BitsAndBytesConfig

    quantised = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    return {"quantization_config": quantised, "dtype": torch.bfloat16}


def is_quantised(model: nn.Module) -> bool:
    """Whether a model is quantised. Its parameters may be integers, or, as in torchao, claim to be floating-point."""
    return getattr(model, "is_quantized", False) or any(not weight.is_floating_point() for weight in model.parameters())
