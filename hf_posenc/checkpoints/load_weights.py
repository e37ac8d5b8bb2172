"""Build the model of a checkpoint with the scheme it was saved with, and fill in its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transformers import PreTrainedModel

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.checkpoints.restore import check_no_missing_weights, finish_loading, patched_class
from hf_posenc.core.files.hf_errors import explained_errors
from hf_posenc.errors import CheckpointMismatch, PosEncError
from hf_posenc.patching.weights import check_finite, keep_arranged


def load_weights(
    checkpoint: Checkpoint, cls: type[PreTrainedModel], *args: Any, keywords: Iterable[str] = (), **hf_kwargs: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Build ``cls`` with the scheme its checkpoint was saved with, and fill in the weights.

    Returns:
        The model, of class ``cls``, and transformers' loading report.
    """
    hf_kwargs["output_loading_info"] = True
    scheme, device_map = checkpoint.model_scheme, hf_kwargs.get("device_map")
    if isinstance(device_map, Mapping):
        device_map = hf_kwargs["device_map"] = dict(device_map)
    with explained_errors(checkpoint.name, keywords):
        if scheme is None:
            model, info = cls.from_pretrained(checkpoint.name, *args, **hf_kwargs)
            keep_arranged(model)
            check_no_missing_weights(model, info, checkpoint.name)
            check_finite(model)
            return model, info
        try:
            loader = patched_class(cls, scheme, device_map)
            model, info = loader.from_pretrained(checkpoint.name, *args, **hf_kwargs)
        except PosEncError as error:
            raise CheckpointMismatch(
                f"{checkpoint.name} carries scheme {scheme}, which does not fit its {cls.__name__}: {error} "
                "Save the patched model again with save_pretrained."
            ) from error
        check_no_missing_weights(model, info, checkpoint.name)
        finish_loading(model, info["missing_keys"])
    return model, info
