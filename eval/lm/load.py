"""Load a model for lm-eval: from a live model, a folder or a hub name to a language model object."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.tested_versions import beyond_tested
from hf_posenc.errors import WrongKind, shown
from hf_posenc.eval.tasks.sweep import Count, checked


def language_model(model: Any, tokenizer: Any, **model_args: Any) -> Any:
    """Return the lm-eval model object of a live model, or of one by name; such an object is returned unchanged.

    Raises:
        WrongKind: ``model`` is none of these.
        MissingPackage: lm-eval is not installed.
    """
    require_lm_eval()
    import torch
    from lm_eval.api.model import LM

    from hf_posenc.checkpoints.checkpoint import Checkpoint
    from hf_posenc.core.files.hf_errors import explained_errors
    from hf_posenc.core.files.paths import checked_name
    from hf_posenc.eval.lm.model_kinds import is_masked
    from hf_posenc.eval.lm.models import PosEncLM, PosEncMLM
    from hf_posenc.eval.lm.native_length import check_device
    from hf_posenc.patching.weights import check_finite

    check_tokenizer(tokenizer)
    check_batch(model_args.get("batch_size", 1))
    if isinstance(model, LM):
        refuse_loading(model, {"tokenizer": tokenizer, **model_args})
        return model
    if isinstance(model, (str, os.PathLike)):
        loading = {name: value for name, value in model_args.items() if name != "peft"}
        checkpoint = Checkpoint.open(model, peft_adapter=model_args.get("peft") or None, **loading)
        model, cls = os.fspath(model), PosEncMLM if is_masked(checkpoint) else PosEncLM
    elif isinstance(model, torch.nn.Module):
        cls = PosEncMLM if is_masked(model) else PosEncLM
    else:
        raise WrongKind(f"A model to measure is a live one, a folder or a hub name, got {shown(model)}. Pass one.")
    if model_args.get("device") is not None:
        check_device(model_args["device"])
    if isinstance(tokenizer, (str, Path)):
        tokenizer = checked_name(tokenizer, "A tokenizer")
    with explained_errors(tokenizer) if isinstance(tokenizer, str) else nullcontext():
        lm = cls(model, tokenizer=tokenizer, **model_args)
    check_finite(lm.model)
    return lm


def check_tokenizer(given: Any) -> None:
    """Refuse what is neither a tokenizer nor the name of one.

    Raises:
        WrongKind: it is neither.
    """
    if given is not None and not isinstance(given, (str, os.PathLike)) and not callable(given):
        raise WrongKind(f"A tokenizer is an object, a folder or a hub name, got {shown(given)}. Pass one, or none.")


def check_batch(given: Any) -> None:
    """Refuse a batch size that is not a positive number or ``auto``.

    Raises:
        TaskOptionOutOfRange: it is neither a count nor ``"auto"``.
    """
    if not (isinstance(given, str) and given.partition(":")[0] == "auto"):
        checked("batch_size", Count, given)


def model_name(lm: Any) -> str:
    """The name or path the model came from, else its class."""
    from hf_posenc.eval.lm.log_probs import unwrapped

    if not hasattr(lm, "model"):  # of an interface to a server
        return type(lm).__name__
    inner = unwrapped(lm.model)
    return getattr(getattr(inner, "config", None), "name_or_path", "") or type(inner).__name__


def scheme_name(lm: Any) -> str:
    """Name of the scheme in tables, of any lm-eval model object."""
    from hf_posenc.errors import NotPatched, UnsupportedModel
    from hf_posenc.patching.state import describe

    if hasattr(lm, "scheme_name"):
        return str(lm.scheme_name)
    try:
        return str(describe(lm.model).to_dict()["scheme"])
    except (AttributeError, NotPatched, UnsupportedModel):
        return "unpatched"


def refuse_loading(lm: Any, given: dict[str, Any]) -> None:
    """Refuse arguments that would have to be known when a model object was made.

    Raises:
        UnknownOption: there is one.
    """
    from hf_posenc.errors import UnknownOption

    for name, value in given.items():
        if name == "on_request" or value is None:  # who reports progress may be anyone
            continue
        raise UnknownOption(
            f"{name}={shown(value)} has no effect on this {type(lm).__name__}, which is made already. Pass it when the "
            "object is made, or pass the model itself."
        )


def require_lm_eval() -> None:
    """Raise an error that names the missing extra instead of the module; warn of an untested version."""
    with explained_imports():
        import lm_eval  # noqa: F401
    beyond_tested("lm-eval")
