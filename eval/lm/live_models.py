"""Keep lm-eval's `HFLM` from changing an already loaded model, and from ignoring arguments silently."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lm_eval.models.huggingface import HFLM

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
