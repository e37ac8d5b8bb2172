"""Which models can be measured, with which arguments of lm-eval's `HFLM`, and how long a text they read."""

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
    """Tokens that the model of an lm-eval model object was trained on, by its scheme's record or its configuration.

    A model that its own configuration scales has the trained length of the same weights under a scheme. Where nothing
    is known, lm-eval's own maximum length.
    """
    if "trained_length" in lm.report:
        return lm.report["trained_length"]
    try:
        base, adapter = base_model_of(lm.model)
    except UnsupportedModel:  # without a scheme, any model may be measured
        return lm.max_length
    return adapter.trained_length(base.config)


def trained_length_under(lm: Any, entry: Entry) -> int:
    """The trained length, in tokens, that a patch of the model of an lm-eval model object counts from."""
    base, adapter = base_model_of(lm.model)
    return trained_length_of_patch(adapter, base.config, entry.scheme, entry.options)


def check_device(name: Any) -> None:
    """Refuse a device that is not there; lm-eval would take the CPU instead."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, TypeError, AssertionError) as error:  # the last where torch is built without it
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
            f"{asked_by and f' by {asked_by}'}. Ask for shorter lengths, or compare schemes that reach further."
        )


def is_masked(model: Any) -> bool:
    """Whether a model's own class, or a checkpoint's, is a masked language model."""
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
    """Refuse a checkpoint that lacks weights of the model, mostly its head, which transformers would draw at random."""
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
def ties_held(lm: Any, model: Any) -> Iterator[None]:
    """Keep `HFLM` from tying weights again: they are tied already, and PEFT's trained copies of tied ones cannot be."""
    hold(model)
    try:
        yield
    finally:
        for one in (model, getattr(lm, "_model", None)):
            getattr(one, "__dict__", {}).pop("tie_weights", None)


def hold(model: Any) -> None:
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


TOKENIZER_OPTIONS = ("add_bos_token",)  # of `HFLM`, which it passes on to a tokenizer that it loads itself


def model_arguments(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments ``pretrained``, ``peft`` and, where they are not given, ``tokenizer`` and ``dtype``."""
    hub = {key: options[key] for key in HUB_OPTIONS if options.get(key) is not None}
    found = ModelName.of(name, adapter=options.get("peft") or None, hub=hub)
    own = {key: value for key, value in options.items() if key not in hub}
    chosen = {**own, **found.hub, "pretrained": found.model, "peft": found.adapter}
    if found.adapter is not None and found.adapter_hub.keys() & set(OF_ONE_NAME):
        chosen["peft"] = str(local_folder(found.adapter, found.adapter_hub))
    if chosen.get("tokenizer") is None and patched_checkpoint(found.tokenizer) is not None:
        given = {key: options[key] for key in TOKENIZER_OPTIONS if options.get(key) is not None}
        chosen["tokenizer"] = load_tokenizer(found.tokenizer, **given)
    elif chosen.get("tokenizer") is None and found.adapter is not None:
        chosen["tokenizer"] = found.tokenizer
    if chosen.get("dtype") is None:
        chosen["dtype"] = found.dtype or "auto"
    return chosen
