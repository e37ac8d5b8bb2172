"""A patched model as a plain checkpoint: where transformers has a RoPE type for the scheme, nobody needs this package.

Any program that reads Llama checkpoints then computes the same: transformers itself, vLLM, and lm-eval through it.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch

from hf_posenc.errors import NotExpressible
from hf_posenc.expecting import same_rotation
from hf_posenc.geometry import HostRotary
from hf_posenc.patching import BLOCK, describe, host_of, scheme_of
from hf_posenc.schemes.base import Scheme, overrides

HOOKS = ("regions", "row_rotation", "bias", "values", "embed", "prepare", "query_scale", "row_scale", "sink", "visible")


def export_native(model: Any, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Save a patched Llama so that plain transformers, without this package, computes the same logits.

    Args:
        model: a patched model; it stays as it is.
        folder: where the checkpoint goes.

    Returns:
        The ``rope_parameters`` written into its ``config.json``.

    Raises:
        NotPatched: the model carries no scheme.
        NotExpressible: transformers has no RoPE type that computes this scheme.
    """
    _, adapter = host_of(model)
    name = describe(model).scheme
    parameters = native_parameters(scheme_of(model), name, layers=bool(describe(model).layers))
    config = copy.deepcopy(model.config)
    delattr(config, BLOCK)
    config.rope_parameters = parameters
    scheme = scheme_of(model)
    rotary = adapter.geometry(config, trained_length=1, target_length=1).rotary
    if rotary is None or not _same(rotary, scheme):
        raise NotExpressible(
            f"transformers computes another rotation than scheme {name!r} from {parameters}. Save it with "
            "model.save_pretrained and load it with hf_posenc.from_pretrained."
        )
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = getattr(model, "generation_config", None)
    plain.save_pretrained(folder)
    return parameters


def native_parameters(scheme: Scheme, name: str, *, layers: bool = False) -> dict[str, Any]:
    """``rope_parameters`` for a scheme.

    Raises:
        NotExpressible: it has none, or does more than rotate.
    """
    parameters = None if layers or len(scheme.schemes) > 1 else scheme.native()
    if parameters is None or any(overrides(scheme, hook) for hook in HOOKS):
        raise NotExpressible(
            f"Scheme {name!r} has no counterpart among transformers' RoPE types. Save it with model.save_pretrained "
            "and load it with hf_posenc.from_pretrained."
        )
    return parameters


def _same(rotary: HostRotary, scheme: Scheme) -> bool:
    apart = abs(rotary.logit_scale - scheme.logit_scale())
    return same_rotation(rotary.rotation, scheme.rotation()) and apart <= 1e-6 * rotary.logit_scale
