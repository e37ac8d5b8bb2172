"""Create the lm-eval model object of a loaded model, or of a model named by a folder or Hub name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.tested_versions import beyond_tested
from hf_posenc.errors import UnknownOption, WrongKind, shown
from hf_posenc.eval.tasks.sweep import Count, checked


def language_model(model: Any, tokenizer: Any, **model_args: Any) -> Any:
    """Create the lm-eval model object of a loaded or named model; an lm-eval model object is returned unchanged."""
    require_lm_eval()
    import torch
    from lm_eval.api.model import LM

    from hf_posenc.checkpoints.checkpoint import Checkpoint
    from hf_posenc.core.files.paths import checked_name
    from hf_posenc.eval.lm.causal_lm import PosEncLM
    from hf_posenc.eval.lm.masked_lm import PosEncMLM
    from hf_posenc.eval.lm.measurable import check_device, is_masked
    from hf_posenc.patching.weights import check_finite

    if not str(batch := model_args.get("batch_size", 1)).startswith("auto"):
        checked("batch_size", Count, batch)
    if isinstance(model, LM):
        refuse_loading(model, {"tokenizer": tokenizer, **model_args})
        return model
    if isinstance(model, (str, os.PathLike)):
        loading = {name: value for name, value in model_args.items() if name != "peft"}
        checkpoint = Checkpoint.open(model, peft_adapter=model_args.get("peft") or None, **loading)
        model = os.fspath(model)
        masked = is_masked(checkpoint)
    elif isinstance(model, torch.nn.Module):
        masked = is_masked(model)
    else:
        raise WrongKind(f"The model must be a loaded model, a folder or a hub name, got {shown(model)}. Pass one.")
    if model_args.get("device") is not None:
        check_device(model_args["device"])
    if isinstance(tokenizer, (str, Path)):
        tokenizer = checked_name(tokenizer, "A tokenizer")
    lm = (PosEncMLM if masked else PosEncLM)(model, tokenizer=tokenizer, **model_args)
    check_finite(lm.model)
    return lm


def model_name(lm: Any) -> str:
    """Name or path that the model was loaded from, otherwise its class."""
    from hf_posenc.eval.lm.log_probs import unwrapped

    if not hasattr(lm, "model"):  # an interface to a server
        return type(lm).__name__
    inner = unwrapped(lm.model)
    return getattr(getattr(inner, "config", None), "name_or_path", "") or type(inner).__name__


def scheme_name(lm: Any) -> str:
    """Name in tables of the scheme of any lm-eval model object."""
    from hf_posenc.errors import NotPatched, UnsupportedModel
    from hf_posenc.patching.state import describe

    try:
        return str(describe(lm.model).to_dict()["scheme"])
    except (AttributeError, NotPatched, UnsupportedModel):
        return "unpatched"


def refuse_loading(lm: Any, arguments: dict[str, Any]) -> None:
    """Refuse arguments that only take effect when a model object is created."""
    for name, value in arguments.items():
        if name != "on_request" and value is not None:
            raise UnknownOption(
                f"{name}={shown(value)} has no effect on this {type(lm).__name__}, which exists already. Pass it when "
                "you create the object, or pass the model itself."
            )


def require_lm_eval() -> None:
    """Raise an error that names the extra to install if lm-eval is missing; warn of an untested version."""
    with explained_imports():
        import lm_eval  # noqa: F401
    beyond_tested("lm-eval")


MODEL_TYPES = {
    "hf_posenc": "hf_posenc.eval.lm.causal_lm:PosEncLM", "hf_posenc_mlm": "hf_posenc.eval.lm.masked_lm:PosEncMLM"
}  # fmt: skip
"""lm-eval model types and their classes; `pyproject.toml` names them as entry points."""


def register_models() -> None:
    """Register ``hf_posenc`` and ``hf_posenc_mlm`` with lm-eval, which does not read entry points before 0.5.

    lm-eval registers its own model types only when it looks one up in an empty registry, so they are registered first.
    """
    import lm_eval.models  # noqa: F401
    from lm_eval.api.registry import model_registry

    for name, target in MODEL_TYPES.items():
        if name not in model_registry:
            model_registry.register(name, target=target)
