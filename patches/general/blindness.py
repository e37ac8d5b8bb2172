"""Check that what was observed of a model is all that tells it positions, and that its attention is what it seems.

Two halves, on a few tokens: with its positions off, permuting the tokens permutes the outputs; and with the measured
rotation put back where our attention will apply it, the outputs are those of the model itself. Attention that is
computed inline gives the same outputs if it is intercepted: with and without padding, and with a KV cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.errors import UnsupportedModel, first_line
from hf_posenc.forward.host_calls import cache_argument, cache_name, cache_of
from hf_posenc.patches.adapter import causal_mask
from hf_posenc.patches.general.inline import Inline
from hf_posenc.patches.general.observation import Observation
from hf_posenc.patches.general.observer import Observer, inputs_of, observed

TOKENS = 12
LIMIT = 1e-3  # of the spread of the outputs, a layer; rounding is a tenth of it, a forgotten position is about 1
ROUNDING = 1e-5  # of the spread of the outputs: the same sums in the same order, but for where a factor is multiplied
PADDING = 3  # tokens
REMEDY = "Write an adapter for it (see docs/add-model.md)."


def check_blindness(model: Any, seen: Observation) -> None:
    """Refuse a model whose positions were not found, or not all of them."""
    positions = torch.arange(TOKENS, device=next(model.parameters()).device)[None]
    call = inputs_of(model, positions)
    stock = outputs(model, Observer(positions), call)
    restored = Observer(positions, silent=True, restored={one.name: one for one in seen.attentions})
    change = deviation(outputs(model, restored, call), stock) if not seen.tables else 0.0
    limit = LIMIT * max(1, len(seen.attentions))
    if change > limit:
        raise UnsupportedModel(
            f"The rotation of this {type(model).__name__} was measured, but does not reproduce the model's outputs: "
            f"they differ by {change:.1e} of their spread. {REMEDY}"
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
            f"With its rotations and position tables off, this {type(model).__name__} still depends on the order "
            f"of its tokens: permuting them changes its outputs by {change:.1e} of their spread. {REMEDY}"
        )


def check_alone(model: Any, seen: Observation) -> None:
    """Refuse a model whose attention cannot be run on its own, as the proof that a patch took effect has to."""
    positions = torch.arange(TOKENS)[None]
    for layer in seen.attentions:
        hidden = torch.randn(1, TOKENS, layer.width, generator=torch.Generator().manual_seed(0))
        mask = causal_mask(hidden) if seen.causal else None
        try:
            with observed(model, Observer(positions)), torch.no_grad():
                layer.run(model, hidden, positions, mask)
        except Exception as error:  # whatever its kernel, or a module around it, says
            raise UnsupportedModel(
                f"Attention of this {type(model).__name__} ({layer.name}) cannot be run on its own: "
                f"{type(error).__name__}: {first_line(error)}. {REMEDY}"
            ) from error


def outputs(model: nn.Module, observer: Observer, call: dict[str, Any]) -> Tensor:
    """Hidden states of one run, ``[1, token, width]``, in at least float32."""
    with observed(model, observer):
        return model(**call)[0].float()


def deviation(one: Tensor, two: Tensor) -> float:
    """Largest difference, in standard deviations of the second."""
    return float((one - two).abs().max() / two.std().clamp(min=1e-6))


def check_inline(model: Any, seen: Observation) -> None:
    """Refuse a model whose outputs change if its attention is intercepted."""
    if not any(one.inline for one in seen.attentions):
        return
    positions = torch.arange(TOKENS)[None]
    call = inputs_of(model, positions)
    padded = partial(of_padded, model, call)
    runs = {"a text": partial(outputs, model, call=call), "a padded text": padded}
    if seen.causal and cache_name(type(model)) is not None:
        runs["a text that is read in two parts"] = partial(continued, model, call=call)
    for what, run in runs.items():
        intercepted = run(Observer(positions))
        with untouched(model):
            change = deviation(intercepted, run(Observer(positions)))
        if change > ROUNDING:
            raise UnsupportedModel(
                f"Attention of this {type(model).__name__} is computed inline, and is not softmax attention over all "
                f"keys: computed that way, {what} differs by {change:.1e} of their spread. {REMEDY}"
            )


def check_padding(model: Any, seen: Observation) -> None:
    """Refuse a model whose tokens read padding, which no mask hides; layers that mix tokens otherwise always do."""
    if seen.mixes_otherwise and not any(one.inline for one in seen.attentions):
        return
    positions = torch.arange(TOKENS)[None]
    padded = partial(of_padded, model, inputs_of(model, positions))
    with untouched(model):
        change = deviation(padded(Observer(positions), fill=1), padded(Observer(positions)))
    if change > ROUNDING:
        raise UnsupportedModel(
            f"Padding reaches other tokens of this {type(model).__name__}, as no mask hides it: other padding changes "
            f"its outputs by {change:.1e} of their spread. Hand the attention mask on to every attention, and move no "
            "tokens outside of attention."
        )


def check_cached(model: Any, seen: Observation) -> None:
    """Refuse a decoder that reads a text otherwise if the first half of it is in a KV cache."""
    if not seen.causal or seen.mixes_otherwise or cache_name(type(model)) is None:
        return
    positions = torch.arange(TOKENS)[None]
    call = inputs_of(model, positions)
    change = deviation(continued(model, Observer(positions), call), outputs(model, Observer(positions), call))
    if change > LIMIT * len(seen.attentions):
        raise UnsupportedModel(
            f"A text that this {type(model).__name__} reads in two parts, with a KV cache, has other outputs than in "
            f"one: they differ by {change:.1e} of their spread. Hand the cache on to every attention, and give each "
            "the layer_idx of its own layer."
        )


def of_padded(model: Any, call: dict[str, Any], observer: Observer, fill: int = 0) -> Tensor:
    """Hidden states of the tokens before padding, which is some token."""
    mask, ids = torch.ones(1, TOKENS, dtype=torch.long), call["input_ids"].clone()
    mask[:, -PADDING:], ids[:, -PADDING:] = 0, ids[:, fill]
    return outputs(model, observer, {**call, "input_ids": ids, "attention_mask": mask})[:, :-PADDING]


def continued(model: Any, observer: Observer, call: dict[str, Tensor]) -> Tensor:
    """Hidden states of a text whose second half is read with the keys of the first in a cache."""
    half, past, found = TOKENS // 2, None, []
    for part in (slice(0, half), slice(half, TOKENS)):
        given = {
            name: value[:, part] if isinstance(value, Tensor) and value.ndim > 1 else value
            for name, value in call.items()
        }
        with observed(model, observer):
            out = model(**{**given, "use_cache": True, **cache_argument(type(model), past)})
        past = cache_of(out)
        found.append(out[0])
    return torch.cat(found, dim=1)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Inside the block, attention of an observed model is computed by its own class."""
    inline = [module for module in model.modules() if isinstance(module, Inline)]
    for module in inline:
        module.own = True
    try:
        yield
    finally:
        for module in inline:
            del module.own
