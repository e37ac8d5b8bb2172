"""Variants of a model that are compared: unpatched, patched, and patched with a naive implementation.

They share their weights, so that three of them take the memory of one, but not their gradients.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_posenc.core.torch_state import drawn_from
from hf_posenc.errors import UnsupportedModel
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.entry import Entry

UNPATCHED, PATCHED, NAIVE = "unpatched", "patched", "naive"
FUSED, MATERIALISED = "sdpa", "eager"
SEED = 0


def variant(model: PreTrainedModel, role: str, entry: Entry, length: int, target: int) -> PreTrainedModel:
    """Build a variant of ``model`` that shares its weights.

    Args:
        model: without a scheme.
        role: `UNPATCHED`, `PATCHED`, or `NAIVE`, which forms all scores and biases: the scheme's reference.
        entry: the scheme and its options.
        length: tokens it is run on.
        target: target length of the scheme in tokens, where the entry has none.

    Raises:
        UnsupportedModel: the model cannot change its attention implementation, which its naive form needs.
        PosEncError: the scheme is refused.
    """
    if role == UNPATCHED:
        chosen = lengthened(model, length)
    else:
        chosen = copy_with_shared_weights(model)
        lengths = dict(entry.lengths)
        if not lengths.keys() & {"factor", "target_length"}:
            lengths["target_length"] = target
        with drawn_from(SEED):
            scheme: str = entry.scheme  # type: ignore[assignment]  # `BenchSettings` refuses an entry without one
            patch_model(chosen, scheme, **{**entry.own_options, **lengths})
    chosen.set_attn_implementation(MATERIALISED if role == NAIVE else FUSED)
    if role == NAIVE and base_model_of(chosen)[0].__dict__[ATTENTIONS][0].backend != MATERIALISED:
        raise UnsupportedModel(
            f"{type(chosen).__name__} cannot change its attention implementation, so that it has no naive form. "
            "Compare with the unpatched model alone (--baselines unpatched)."
        )
    return chosen


def copy_with_shared_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model so that it shares the memory of all weights."""
    same = {id(p): nn.Parameter(p.data, requires_grad=p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, memo={**same, id(model.config): copy.deepcopy(model.config)})


def lengthened(model: PreTrainedModel, length: int) -> PreTrainedModel:
    """Copy that runs on any length, for timing only: a position table is repeated past its end."""
    base, adapter = base_model_of(model)
    known: Any = base.config
    if length <= adapter.host_length(known):
        return copy_with_shared_weights(model)
    trained = adapter.trained_length(known)
    if adapter.geometry(known, trained_length=trained, target_length=trained).table is None:
        longer = copy_with_shared_weights(model)
        longer.config.max_position_embeddings = length
        return longer
    config = copy.deepcopy(model.config)
    config.max_position_embeddings = length
    longer = type(model)(config).to(model.device, model.dtype)
    kept = dict(model.named_parameters())
    for name, weight in longer.named_parameters():
        old = kept[name].data
        weight.data = old if old.shape == weight.shape else old.repeat(-(-length // len(old)), 1)[:length]
    return longer.train(model.training)
