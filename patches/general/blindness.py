"""Verify an observation: the model has no other source of positions, and its attention can be replaced.

All checks run a stand-in on a few tokens. Without its positions, permuting the tokens permutes the outputs. With the
measured rotation applied where patched attention will apply it, the outputs equal the model's own. Inline attention
gives the same outputs when it is intercepted, with and without padding, and with a KV cache.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.errors import UnsupportedModel, first_line
from hf_posenc.forward.host_calls import cache_argument, cache_in_output, cache_name
from hf_posenc.patches.adapter import causal_mask
from hf_posenc.patches.general.observation import Observation
from hf_posenc.patches.general.observer import Observer, inputs_of, observed

TOKENS = 12
LIMIT = 1e-3  # in standard deviations of the outputs, per layer; rounding is a tenth of it, a missed position about 1
ROUNDING = 1e-5  # in standard deviations of the outputs: equal sums in equal order, with a factor at another place
PADDING = 3  # tokens
REMEDY = "Write an adapter for it (see docs/add-model.md)."


def check_blindness(model: Any, seen: Observation) -> None:
    """Refuse a model if the observation misses one of its sources of positions."""
    positions = torch.arange(TOKENS, device=next(model.parameters()).device)[None]
    call = inputs_of(model, positions)
    expected = outputs(model, Observer(positions), call)
    restored = Observer(positions, silent=True, restored={one.name: one for one in seen.attentions})
    difference = deviation(outputs(model, restored, call), expected) if not seen.tables else 0.0
    limit = LIMIT * max(1, len(seen.attentions))
    if difference > limit:
        raise UnsupportedModel(
            f"The rotation of this {type(model).__name__} was measured, but does not reproduce the model's outputs: "
            f"they differ by {difference:.1e} of their spread. {REMEDY}"
        )
    if seen.mixes_otherwise:
        return
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1)).to(positions.device)
    unmasked = not seen.causal or any(one.inline for one in seen.attentions)  # some refuse a mask of four axes
    if not unmasked:
        everything = torch.zeros(1, 1, TOKENS, TOKENS, device=positions.device, dtype=expected.dtype)
        call = {**call, "attention_mask": everything}
    without_positions = partial(Observer, positions, silent=True, unmasked=unmasked)
    in_order = outputs(model, without_positions(), call)
    permuted = outputs(model, without_positions(), {**call, "input_ids": call["input_ids"][:, order]})
    difference = deviation(permuted, in_order[:, order])
    if difference > limit:
        raise UnsupportedModel(
            f"With its rotations and position tables off, this {type(model).__name__} still depends on the order "
            f"of its tokens: permuting them changes its outputs by {difference:.1e} of their spread. {REMEDY}"
        )


def check_alone(model: Any, seen: Observation) -> None:
    """Refuse a model whose attention module cannot be called alone, which the proof of a patch requires."""
    positions = torch.arange(TOKENS)[None]
    for layer in seen.attentions:
        hidden = torch.randn(1, TOKENS, layer.width, generator=torch.Generator().manual_seed(0))
        mask = causal_mask(hidden) if seen.causal else None
        try:
            with observed(model, Observer(positions)), torch.no_grad():
                layer.run(model, hidden, positions, mask)
        except Exception as error:  # a kernel or a wrapper may raise anything
            raise UnsupportedModel(
                f"Attention of this {type(model).__name__} ({layer.name}) cannot be run on its own: "
                f"{type(error).__name__}: {first_line(error)}. {REMEDY}"
            ) from error


def outputs(model: nn.Module, observer: Observer, call: dict[str, Any]) -> Tensor:
    """Hidden states of one forward pass under ``observer``, ``[1, token, width]``, float32."""
    with observed(model, observer):
        return model(**call)[0].float()


def deviation(one: Tensor, two: Tensor) -> float:
    """Largest difference of two outputs, in standard deviations of the second."""
    return float((one - two).abs().max() / two.std().clamp(min=1e-6))


def check_inline(model: Any, seen: Observation) -> None:
    """Refuse a model with inline attention whose outputs differ when the attention is intercepted."""
    if not any(one.inline for one in seen.attentions):
        return
    positions = torch.arange(TOKENS)[None]
    call = inputs_of(model, positions)
    padded = partial(padded_outputs, model, call)
    runs = {"a text": partial(outputs, model, call=call), "a padded text": padded}
    if seen.causal and cache_name(type(model)) is not None:
        runs["a text that is read in two parts"] = partial(cached_outputs, model, call=call)
    for text, run in runs.items():
        intercepted = run(Observer(positions))
        difference = deviation(intercepted, run(Observer(positions, intercepts=False)))
        if difference > ROUNDING:
            raise UnsupportedModel(
                f"Attention of this {type(model).__name__} is computed inline, and is not softmax attention over all "
                f"keys: computed that way, {text} differs by {difference:.1e} of their spread. {REMEDY}"
            )


def check_padding(model: Any, seen: Observation) -> None:
    """Refuse a model in which padding changes real tokens; models that also mix tokens outside attention are exempt."""
    if seen.mixes_otherwise and not any(one.inline for one in seen.attentions):
        return
    positions = torch.arange(TOKENS)[None]
    padded = partial(padded_outputs, model, inputs_of(model, positions))
    one, other = (padded(Observer(positions, intercepts=False), pad_column=column) for column in (1, 0))
    difference = deviation(one, other)
    if difference > ROUNDING:
        raise UnsupportedModel(
            f"Padding reaches other tokens of this {type(model).__name__}, as no mask hides it: other padding changes "
            f"its outputs by {difference:.1e} of their spread. Pass the attention mask to every attention module, and "
            "move no tokens outside attention."
        )


def check_cached(model: Any, seen: Observation) -> None:
    """Refuse a decoder whose outputs differ when the first half of a text is in a KV cache."""
    if not seen.causal or seen.mixes_otherwise or cache_name(type(model)) is None:
        return
    positions = torch.arange(TOKENS)[None]
    call = inputs_of(model, positions)
    difference = deviation(cached_outputs(model, Observer(positions), call), outputs(model, Observer(positions), call))
    if difference > LIMIT * len(seen.attentions):
        raise UnsupportedModel(
            f"A text that this {type(model).__name__} reads in two parts, with a KV cache, has other outputs than in "
            f"one: they differ by {difference:.1e} of their spread. Pass the cache to every attention module, and give "
            "each the layer_idx of its own layer."
        )


def padded_outputs(model: Any, call: dict[str, Any], observer: Observer, pad_column: int = 0) -> Tensor:
    """Hidden states of the real tokens of a padded text; the padding repeats the token in column ``pad_column``."""
    mask, ids = torch.ones(1, TOKENS, dtype=torch.long), call["input_ids"].clone()
    mask[:, -PADDING:], ids[:, -PADDING:] = 0, ids[:, pad_column]
    return outputs(model, observer, {**call, "input_ids": ids, "attention_mask": mask})[:, :-PADDING]


def cached_outputs(model: Any, observer: Observer, call: dict[str, Tensor]) -> Tensor:
    """Hidden states of a text read in two halves, with the keys of the first half in a KV cache."""
    half, past, states = TOKENS // 2, None, []
    for part in (slice(0, half), slice(half, TOKENS)):
        inputs = {
            name: value[:, part] if isinstance(value, Tensor) and value.ndim > 1 else value
            for name, value in call.items()
        }
        with observed(model, observer):
            out = model(**{**inputs, "use_cache": True, **cache_argument(type(model), past)})
        past = cache_in_output(out)
        states.append(out[0])
    return torch.cat(states, dim=1)
