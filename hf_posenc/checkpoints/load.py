"""Load checkpoints with the scheme they were saved with, bit-equal.

`save_pretrained` of a patched model writes the scheme into ``config.json`` (see
`hf_posenc.patching.stored.scheme_config`) and its learned parameters among the weights. Plain transformers would ignore
both, so the model is built here as it was saved: at the unpatched model's own length, and patched inside its
constructor, so that transformers' loader finds a place for every parameter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from transformers import PreTrainedModel

from hf_posenc.checkpoints.auto import disable_auto, enable_auto
from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.checkpoints.hub import with_hub_options
from hf_posenc.checkpoints.peft import attach_adapter
from hf_posenc.checkpoints.request import SchemeRequest, option_names
from hf_posenc.checkpoints.restore import load_weights
from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import CheckpointMismatch
from hf_posenc.schemes.spec import SchemeSpec

if TYPE_CHECKING:
    from torch import nn

__all__ = ["disable_auto", "enable_auto", "from_pretrained"]


@explained_imports()
def from_pretrained(
    name_or_path: str | os.PathLike[str],
    *,
    model_class: Any = None,
    scheme: SchemeSpec | None = None,
    factor: float | None = None,
    target_length: int | None = None,
    trained_length: int | None = None,
    layers: Mapping[int | str, SchemeSpec] | Literal["all"] | None = None,
    peft_adapter: str | os.PathLike[str] | None = None,
    **hf_kwargs: Any,
) -> nn.Module:
    """Load a model with the scheme its checkpoint carries, or with the one asked for.

    Args:
        name_or_path: a folder, a Hub name or ``"starter:llama"``; of a model, of a PEFT adapter whose base is then
            loaded, or of a run of `hf_posenc.training.finetune`.
        model_class: a model class or an Auto class; by default the checkpoint's own architecture.
        scheme, factor, target_length, trained_length, layers: as `patch_model` takes them. On a checkpoint that carries
            a scheme they must agree with it.
        peft_adapter: a PEFT adapter to load on top; the base is patched as the adapter's sidecar says.
        **hf_kwargs: options of the scheme asked for; everything else goes to transformers as it is. A ``revision`` or
            ``subfolder`` is that of ``name_or_path``.

    Returns:
        The model, in evaluation mode; a `PeftModel` where a PEFT adapter was loaded.

    Raises:
        CheckpointMismatch: the scheme config cannot be read, or disagrees with what was asked for; or pickled weights
            were asked for.
        PeftAdapterMismatch: the PEFT adapter belongs to another scheme.
        ModelNotFound: there is no such model, or it cannot be downloaded.
        UnknownStarter: there is no bundled model of that name.
        HostConfigInvalid: its configuration has positions out of range.
        UnknownOption: a keyword that neither the scheme nor transformers takes.
        WrongKind: the name is neither text nor a path.
        NotPatched: lengths or layers were given, and there is no scheme they could belong to.
    """
    lengths = {"factor": factor, "trained_length": trained_length, "target_length": target_length}
    options = {name: hf_kwargs.pop(name) for name in option_names(scheme) if name in hf_kwargs}
    request = SchemeRequest(scheme, options, layers, lengths)

    checkpoint = Checkpoint.open(name_or_path, peft_adapter=peft_adapter, **hf_kwargs)
    request.check_agreement(checkpoint)
    chosen = checkpoint.model_class(model_class)
    keywords = {*option_names(scheme), *lengths, "layers", "dtype", "device_map", "revision"}
    if checkpoint.dtype is not None and not hf_kwargs.keys() & {"dtype", "torch_dtype"}:
        hf_kwargs["dtype"] = checkpoint.dtype
    hf_kwargs = with_hub_options(hf_kwargs, checkpoint.hub)
    model, info = load_weights(checkpoint, chosen, keywords=keywords, **require_safetensors(hf_kwargs))
    check_no_missing_weights(model, info, checkpoint.name)

    loaded: nn.Module = model
    if checkpoint.adapter is not None:
        loaded = attach_adapter(model, checkpoint.adapter, patch=checkpoint.model_scheme is None)
    if checkpoint.scheme is None:
        request.patch(loaded)
    return (loaded, info) if hf_kwargs.get("output_loading_info") else loaded  # type: ignore[return-value]


def require_safetensors(hf_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's keywords, with safetensors required.

    Raises:
        CheckpointMismatch: pickled weights were asked for.
    """
    if hf_kwargs.get("use_safetensors", True) is False:
        raise CheckpointMismatch(
            "use_safetensors=False asks for pickled weights, which can run code when they are read. "
            "Load them with transformers, save_pretrained, and pass that folder."
        )
    return {**hf_kwargs, "use_safetensors": True}


def check_no_missing_weights(model: PreTrainedModel, info: Mapping[str, Any], name: str) -> None:
    """Refuse a checkpoint that lacks weights of the base model, which transformers would draw at random.

    Heads and poolers may be missing: a base model is saved without them.

    Args:
        model: as it was loaded.
        info: transformers' loading report.
        name: of the checkpoint, for messages.

    Raises:
        CheckpointMismatch: a weight is missing, or has another shape.
    """
    prefix = f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""
    missing = sorted(
        weight
        for weight in info.get("missing_keys", ())
        if weight.startswith(prefix) and not {"posenc", "pooler"} & set(weight.split("."))
    )
    mismatched = sorted(str(one[0]) for one in info.get("mismatched_keys", ()))
    if missing or mismatched:
        shape = f"has the weight {mismatched[0]!r} in another shape" if mismatched else ""
        problem = f"lacks the weight {missing[0]!r}" if missing else shape
        raise CheckpointMismatch(
            f"The checkpoint {name} {problem}, which transformers would initialise at random. Copy or save it again."
        )
