"""Check that what was observed of a model is all that tells it positions.

Two halves, on a few tokens: with its positions off, permuting the tokens permutes the outputs; and with the measured
rotation put back where our attention will apply it, the outputs are those of the model itself.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.errors import UnsupportedModel
from hf_posenc.patches.adapter import causal_mask
from hf_posenc.patches.general.observation import Observation
from hf_posenc.patches.general.observer import Observer, inputs_of, observed

TOKENS = 12
LIMIT = 1e-3  # of the spread of the outputs, a layer; rounding is a tenth of it, a forgotten position is about 1
REMEDY = "Write an adapter for it (see docs/add-model.md)."


def check_blindness(model: Any, seen: Observation) -> None:
    """Refuse a model whose positions were not found, or not all of them.

    Args:
        model: the observed stand-in.
        seen: what was observed of it.

    Raises:
        UnsupportedModel: as it says.
    """
    positions = torch.arange(TOKENS, device=next(model.parameters()).device)[None]
    call = inputs_of(model, positions)
    stock = outputs(model, Observer(positions), call)
    restored = Observer(positions, silent=True, restored={one.name: one for one in seen.attentions})
    change = deviation(outputs(model, restored, call), stock) if not seen.tables else 0.0
    limit = LIMIT * max(1, len(seen.attentions))
    if change > limit:
        raise UnsupportedModel(
            f"The rotation of this {type(model).__name__} was measured, but applied to its queries and keys it gives "
            f"other outputs than the model's own, by {change:.1e} of their spread. {REMEDY}"
        )
    if seen.mixes_otherwise:
        return
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1)).to(positions.device)
    unmasked = not seen.causal or any(one.inline for one in seen.attentions)  # some refuse a mask of four axes
    if not unmasked:
        everything = torch.zeros(1, 1, TOKENS, TOKENS, device=positions.device, dtype=stock.dtype)
        call = {**call, "attention_mask": everything}
    blind = partial(Observer, positions, silent=True, unmasked=unmasked)
    straight = outputs(model, blind(), call)
    permuted = outputs(model, blind(), {**call, "input_ids": call["input_ids"][:, order]})
    change = deviation(permuted, straight[:, order])
    if change > limit:
        raise UnsupportedModel(
            f"With its rotations and position tables off, this {type(model).__name__} still knows the order of its "
            f"tokens: permuting them changes its outputs by {change:.1e} of their spread. {REMEDY}"
        )


def check_alone(model: Any, seen: Observation) -> None:
    """Refuse a model whose attention cannot be run on its own, as the proof that a patch took effect has to.

    Raises:
        UnsupportedModel: it raises.
    """
    positions = torch.arange(TOKENS)[None]
    for layer in seen.attentions:
        hidden = torch.randn(1, TOKENS, layer.width, generator=torch.Generator().manual_seed(0))
        mask = causal_mask(hidden) if seen.causal else None
        try:
            with observed(model, Observer(positions)), torch.no_grad():
                layer.run(model, hidden, positions, mask)
        except Exception as error:  # whatever its kernel, or a module around it, says
            first = " ".join(str(error).split()).rstrip(" .:!")[:150]
            raise UnsupportedModel(
                f"Attention of this {type(model).__name__} ({layer.name}) cannot be run on its own: "
                f"{type(error).__name__}: {first}. {REMEDY}"
            ) from error


def outputs(model: nn.Module, observer: Observer, call: dict[str, Any]) -> Tensor:
    """Hidden states of one run, ``[1, token, width]``, in at least float32."""
    with observed(model, observer):
        return model(**call)[0].float()


def deviation(one: Tensor, two: Tensor) -> float:
    """Largest difference, in standard deviations of the second."""
    return float((one - two).abs().max() / two.std().clamp(min=1e-6))
