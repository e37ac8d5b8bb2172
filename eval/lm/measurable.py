"""Checks of models and arguments before a measurement, and the longest text that a model can read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hf_posenc.checkpoints.adapter_folder import local_folder
from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.checkpoints.hub import HUB_OPTIONS, OF_ONE_NAME
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import load_tokenizer, patched_checkpoint
from hf_posenc.errors import CheckpointMismatch, OptionOutOfRange, UnknownOption, UnsupportedModel, nearest, shown
from hf_posenc.eval.errors import BeyondTable, NotMeasurable
from hf_posenc.eval.lm.log_probs import unwrapped
from hf_posenc.patching.layer_schemes import trained_length_of_patch
from hf_posenc.patching.state import base_model_of
from hf_posenc.patching.weights import check_vocabulary
from hf_posenc.schemes.entry import Entry


def trained_length_of_lm(lm: Any) -> int:
    """Trained length in tokens of an lm-eval model object, from the report of its patch or from its configuration.

    If the configuration scales the rotation, this is the length that a patch of the same weights would start from. For
    a model without an adapter, it is lm-eval's maximum length.
    """
    if "trained_length" in lm.report:
        return lm.report["trained_length"]
    try:
        base, adapter = base_model_of(lm.model)
    except UnsupportedModel:  # without a scheme, any model may be measured
        return lm.max_length
    return adapter.trained_length(base.config)


def trained_length_under(lm: Any, entry: Entry) -> int:
    """Trained length in tokens that a patch with ``entry`` would extend, on the model of an lm-eval model object."""
    base, adapter = base_model_of(lm.model)
    return trained_length_of_patch(adapter, base.config, entry.scheme, entry.options)


def check_device(name: Any) -> None:
    """Refuse a device that does not exist; lm-eval would use the CPU instead."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, TypeError, AssertionError) as error:  # the last if torch is built without this backend
        raise OptionOutOfRange(
            f"There is no device {shown(name)} on this machine. Leave it out, or pass cpu."
        ) from error


def check_row(lm: Any, ids: Sequence[int]) -> None:
    """Refuse a text that the model has no positions or no embeddings for."""
    check_reach(lm, len(ids))
    check_vocabulary(lm.model, max(ids, default=0))


def check_reach(lm: Any, length: int, asked_by: str = "") -> None:
    """Refuse a length past the end of a learned position table, where the model itself raises an index error."""
    if lm.report:  # a scheme checks its own reach
        return
    try:
        base, adapter = base_model_of(lm.model)
    except UnsupportedModel:
        return
    trained = adapter.trained_length(base.config)
    rows = adapter.geometry(base.config, trained_length=trained, target_length=trained).table
    if rows is not None and length > rows:
        raise BeyondTable(
            f"The unpatched model has learned {rows} positions, and {length} are requested"
            f"{f' by {asked_by}' if asked_by else ''}. Ask for shorter lengths, or compare schemes that reach further."
        )


def is_masked(model: Any) -> bool:
    """Whether the class of a model, or of a checkpoint, is a masked language model."""
    if isinstance(model, Checkpoint):
        classes = model.architectures
    else:
        classes = [cls.__name__ for cls in type(unwrapped(model)).__mro__]
    return any(name.endswith("ForMaskedLM") for name in classes)


def check_one_stack(config: Any) -> None:
    """Refuse the configuration of an encoder–decoder, whose encoder would read the tokens to score."""
    if getattr(config, "is_encoder_decoder", False):
        raise NotMeasurable(
            f"This {config.model_type} is an encoder–decoder, which these tasks cannot score. Measure a decoder or an "
            "encoder, or use lm-eval's own model type hf with backend=seq2seq."
        )


def check_head(loading: Mapping[str, Any], name: str) -> None:
    """Refuse a checkpoint without all weights, usually without a head: transformers would draw these at random."""
    missing = sorted(key for key in loading["missing_keys"] if not {"posenc", "pooler"} & set(key.split(".")))
    if missing:
        raise CheckpointMismatch(
            f"The checkpoint {name} lacks {missing[0]!r}, which transformers would initialise at random. Measure a "
            "checkpoint that was saved whole, with a language-model head."
        )


OTHER_WEIGHTS = ("delta", "autogptq", "gptqmodel")
LOADING = (
    "peft", "dtype", "revision", "subfolder", "gguf_file", "parallelize", "tp_plan", "max_memory_per_gpu",
    "max_cpu_memory", "offload_folder",
)  # fmt: skip


@contextmanager
def without_tying(lm: Any, model: Any) -> Iterator[None]:
    """Inside the block, keep `HFLM` from tying weights again: they are tied, and PEFT's trained copies cannot be."""
    disable_tying(model)
    try:
        yield
    finally:
        for one in (model, getattr(lm, "_model", None)):
            getattr(one, "__dict__", {}).pop("tie_weights", None)


def disable_tying(model: Any) -> None:
    """Make `tie_weights` of a loaded model do nothing."""
    if not isinstance(model, str):
        model.__dict__["tie_weights"] = lambda: None


def refuse_unused(model: Any, options: dict[str, Any]) -> None:
    """Refuse options that `HFLM` would silently ignore for a loaded model."""
    from lm_eval.models.huggingface import HFLM

    known = set(inspect.signature(HFLM.__init__).parameters) - {"self", "kwargs", *LOADING, *OTHER_WEIGHTS}
    for name in options.keys() - known:
        raise UnknownOption(
            f"{name!r} has no effect on this model, which is loaded already.{nearest(name, known)} "
            "Leave it out; factor and options of a scheme need scheme=."
        )
    device = str(options.get("device") or model.device)
    if device.partition(":")[0] != model.device.type:
        raise UnknownOption(
            f"device={device!r} has no effect on this model, which is on {str(model.device)!r} already. "
            f"Move it with model.to({device!r}), or leave device out."
        )


def model_arguments(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Complete the options of a named model: ``pretrained``, ``peft``, and defaults of ``tokenizer`` and ``dtype``."""
    hub = {key: options[key] for key in HUB_OPTIONS if options.get(key) is not None}
    parsed = ModelName.of(name, adapter=options.get("peft") or None, hub=hub)
    others = {key: value for key, value in options.items() if key not in hub}
    arguments = {**others, **parsed.hub, "pretrained": parsed.model, "peft": parsed.adapter}
    if parsed.adapter is not None and parsed.adapter_hub.keys() & set(OF_ONE_NAME):
        arguments["peft"] = str(local_folder(parsed.adapter, parsed.adapter_hub))
    if arguments.get("tokenizer") is None and patched_checkpoint(parsed.tokenizer) is not None:
        begin = options.get("add_bos_token")  # the option that `HFLM` passes to a tokenizer that it loads itself
        begins = {} if begin is None else {"add_bos_token": begin}
        arguments["tokenizer"] = load_tokenizer(parsed.tokenizer, **begins)
    elif arguments.get("tokenizer") is None and parsed.adapter is not None:
        arguments["tokenizer"] = parsed.tokenizer
    if arguments.get("dtype") is None:
        arguments["dtype"] = parsed.dtype or "auto"
    return arguments
