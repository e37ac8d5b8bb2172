"""Scheme parameters that a checkpoint lacks, initialised by the scheme and not by transformers."""

from __future__ import annotations

from torch import nn
from transformers import logging

from hf_posenc.errors import CheckpointMismatch
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.composition import Composition

logger = logging.get_logger(__name__)


def initialise_missing(model: nn.Module, missing: set[str]) -> None:
    """Initialise the parameters that a checkpoint lacks; those that were loaded keep their values.

    Args:
        model: patched, with its weights loaded.
        missing: names of parameters in ``model``.

    Raises:
        CheckpointMismatch: they have been offloaded already.
    """
    for prefix, scheme in model.named_modules():
        if not isinstance(scheme, Scheme) or isinstance(scheme, Composition):
            continue
        lost = [name for name, _ in scheme.named_parameters() if f"{prefix}.{name}" in missing]
        if not lost:
            continue
        if any(weight.is_meta for weight in scheme.parameters()):
            raise CheckpointMismatch(
                f"The checkpoint lacks {', '.join(lost)} of scheme {scheme.extra_repr()!r}, and the device map "
                "offloads them, so that they cannot be initialised. Load it without a device_map, train and save it."
            )
        logger.warning(
            f"The checkpoint lacks {', '.join(lost)} of scheme {scheme.extra_repr()!r}. Train the model before use."
        )
        kept = {name: p.detach().clone() for name, p in scheme.named_parameters() if name not in lost}
        scheme.reset_parameters()
        scheme.load_state_dict(kept, strict=False)
