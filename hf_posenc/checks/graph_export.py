"""Checks of graphs that hold for any length: one is made of a patched model, and reads texts it was not made of."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    forward,
    max_deviation,
    output_module,
    random_tokens,
    token_states,
)
from hf_posenc.checks.registry import register_check

LONGEST = 1024  # tokens of an exported program; xpos has one for each chunk of about 2,000
GRAPHS = 2  # a compiler fixes the first length it meets, and leaves it open when it meets another

Graph = Callable[[Tensor], Tensor]


@register_check("exported", company=True, costly=True, copies=True)
def exported_equals_eager(pair: Case, strict: bool = False) -> Deviation:
    """`torch.export` gives one program for every length, and it reads as the model does."""

    def export(logits: nn.Module, model: PreTrainedModel) -> Graph:
        shapes = {"tokens": {1: torch.export.Dim("length", min=2, max=pair.length(LONGEST, model))}}
        example = (random_tokens(model, pair.length(pair.trained - 3, model)),)
        return torch.export.export(logits, example, dynamic_shapes=shapes, strict=strict).module()

    return _held(pair, "exported", export)


@register_check("scripted", company=True, costly=True, copies=True)
def scripted_equals_eager(pair: Case) -> Deviation:
    """What `torch.jit.trace` writes down of one text reads other texts, of that length and of others."""

    def trace(logits: nn.Module, model: PreTrainedModel) -> Graph:
        return torch.jit.trace(logits, (random_tokens(model, pair.length(pair.trained - 3, model)),), check_trace=False)

    return _held(pair, "scripted", trace)


@register_check("lengths", company=True, costly=True, copies=True)
def lengths_share_a_graph(pair: Case, lengths: Iterable[int] = ()) -> Deviation:
    """Texts of many lengths, read compiled, take no more graphs than those of two lengths.

    The value is infinite where there are more.
    """
    graphs = []

    def counted(graph: torch.fx.GraphModule, example: object) -> Callable:
        graphs.append(graph)
        return graph.forward

    def compiled(logits: nn.Module, model: PreTrainedModel) -> Graph:
        return torch.compile(logits, fullgraph=True, backend=counted)  # type: ignore[return-value]

    gap = _held(pair, "lengths", compiled, lengths)
    if len(graphs) > GRAPHS:
        return pair.gap("lengths", math.inf, f"{len(graphs)} graphs")
    return gap


class Logits(nn.Module):
    """A model as a function of tokens alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = output_module(model)  # found here, where nothing is written down

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, or hidden states where there is no vocabulary head: ``[row, token, width]``."""
        return token_states(self.model(input_ids=tokens, use_cache=False))


def _held(pair: Case, name: str, make: Callable[[nn.Module, Any], Graph], lengths: Iterable[int] = ()) -> Deviation:
    """The largest deviation of a graph from its model over texts of some lengths; infinite where there is no graph."""
    worst, place = 0.0, "no token"
    with pair.patched() as model, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of compilers, about what they trace; the check says what came out
        torch.compiler.reset()
        wanted = [*lengths] or [pair.trained - 3, 5, pair.trained, pair.trained + 1, 2 * pair.trained + 6]
        try:
            graph = make(Logits(model).eval(), model)
            for length in dict.fromkeys(pair.length(n, model) for n in wanted):
                tokens = random_tokens(model, length, seed=length)
                value, where = max_deviation(graph(tokens).float(), forward(model, tokens))
                if not value <= worst:
                    worst, place = value, f"{where}, of {length}"
        except RuntimeError as error:  # of every tracer's own
            return pair.gap(name, math.inf, f"no graph: {str(error).strip().partition(chr(10))[0]}")
        finally:
            torch.compiler.reset()
    return pair.gap(name, worst, place)
