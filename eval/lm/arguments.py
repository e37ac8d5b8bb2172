"""Arguments of lm-eval's `HFLM`: what a model's name stands for, and what it must not do to a live model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lm_eval.models.huggingface import HFLM

from hf_posenc.checkpoints.adapter_folder import local_folder
from hf_posenc.checkpoints.hub import HUB_OPTIONS, OF_ONE_NAME
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import is_guarded, load_tokenizer
from hf_posenc.errors import UnknownOption, nearest

OTHER_WEIGHTS = ("delta", "autogptq", "gptqmodel")
LOADING = (
    "peft", "dtype", "revision", "subfolder", "gguf_file", "parallelize", "tp_plan", "max_memory_per_gpu",
    "max_cpu_memory", "offload_folder",
)  # fmt: skip


@contextmanager
def ties_held(lm: Any, model: Any) -> Iterator[None]:
    """Keep `HFLM` from tying weights again: they are tied already, and PEFT's trained copies of tied ones cannot be."""
    hold(model)
    try:
        yield
    finally:
        for one in (model, getattr(lm, "_model", None)):
            getattr(one, "__dict__", {}).pop("tie_weights", None)


def hold(model: Any) -> None:
    """Make `tie_weights` of a live model do nothing."""
    if not isinstance(model, str):
        model.__dict__["tie_weights"] = lambda: None


def refuse_unused(model: Any, options: dict[str, Any]) -> None:
    """Refuse options that `HFLM` would silently ignore for a live model.

    Raises:
        UnknownOption: such an option was given.
    """
    known = set(inspect.signature(HFLM.__init__).parameters) - {"self", "kwargs", *LOADING, *OTHER_WEIGHTS}
    for name in options.keys() - known:
        raise UnknownOption(
            f"{name!r} has no effect on this model, which is loaded already.{nearest(name, known)} "
            "Leave it out; scheme= makes room for factor and options of a scheme."
        )
    device = str(options.get("device") or model.device)
    if device.partition(":")[0] != model.device.type:
        raise UnknownOption(
            f"device={device!r} has no effect on this model, which is on {str(model.device)!r} already. "
            f"Move it with model.to({device!r}), or leave device out."
        )


TOKENIZER_OPTIONS = ("add_bos_token",)  # of `HFLM`, which it passes on to a tokenizer that it loads itself


def model_arguments(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments ``pretrained``, ``peft`` and, where they are not given, ``tokenizer`` and ``dtype``.

    Args:
        name: of a model, of a PEFT adapter, or of a bundled model.
        options: the other arguments of the caller; ``peft`` among them is the name of an adapter on the model.

    Raises:
        PosEncError: there is no such model; see `ModelName.of`.
    """
    hub = {key: options[key] for key in HUB_OPTIONS if options.get(key) is not None}
    found = ModelName.of(name, adapter=options.get("peft") or None, hub=hub)
    own = {key: value for key, value in options.items() if key not in hub}
    chosen = {**own, **found.hub, "pretrained": found.model, "peft": found.adapter}
    if found.adapter is not None and found.adapter_hub.keys() & set(OF_ONE_NAME):
        chosen["peft"] = str(local_folder(found.adapter, found.adapter_hub))
    if chosen.get("tokenizer") is None and is_guarded(found.tokenizer):
        given = {key: options[key] for key in TOKENIZER_OPTIONS if options.get(key) is not None}
        chosen["tokenizer"] = load_tokenizer(found.tokenizer, **given)
    elif chosen.get("tokenizer") is None and found.adapter is not None:
        chosen["tokenizer"] = found.tokenizer
    if chosen.get("dtype") is None:
        chosen["dtype"] = found.dtype or "auto"
    return chosen
