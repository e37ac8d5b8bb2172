"""Check that attention which is computed inline is what it is taken for: intercepted, it gives the same outputs.

On a stand-in, with and without padding, and with a KV cache where the model takes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.errors import UnsupportedModel
from hf_posenc.forward.host_calls import cache_argument, cache_name, cache_of
from hf_posenc.patches.general.blindness import REMEDY, TOKENS, deviation, outputs
from hf_posenc.patches.general.inline import Inline
from hf_posenc.patches.general.observation import Observation
from hf_posenc.patches.general.observer import Observer, inputs_of, observed

ROUNDING = 1e-5  # of the spread of the outputs: the same sums in the same order, but for where a factor is multiplied
PADDING = 3  # tokens


def check_inline(model: Any, seen: Observation) -> None:
    """Refuse a model whose outputs change if its attention is intercepted.

    Args:
        model: the observed stand-in.
        seen: what was observed of it.

    Raises:
        UnsupportedModel: they do.
    """
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
                f"Attention of this {type(model).__name__} is computed inline, and not as softmax attention over all "
                f"keys: computed so, {what} gives other outputs, by {change:.1e} of their spread. {REMEDY}"
            )

    with untouched(model):
        change = deviation(padded(Observer(positions), fill=1), padded(Observer(positions)))
    if change > ROUNDING:
        raise UnsupportedModel(
            f"Tokens of this {type(model).__name__} read the padding beside them otherwise than by attention, which no "
            f"mask hides: other padding changes its outputs by {change:.1e} of their spread. {REMEDY}"
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
        given = {name: value[:, part] if isinstance(value, Tensor) else value for name, value in call.items()}
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
