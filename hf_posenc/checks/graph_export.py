"""Checks of graphs: compiled, traced and exported models give the eager model's outputs at every text length."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import is_torch_flex_attn_available

from hf_posenc.checks.case import Case
from hf_posenc.checks.forward import (
    attention_backend,
    forward,
    max_deviation,
    output_module,
    random_tokens,
    token_states,
)
from hf_posenc.checks.registry import Measured, located, register_check, worst
from hf_posenc.errors import BackendCannotCarry

LONGEST = 1024  # tokens; xpos computes in chunks of about 2,000 tokens, and needs a graph for each number of chunks
MAX_GRAPHS = 2  # torch.compile specialises on the first length, and makes it dynamic at the second

Graph = Callable[[Tensor], Tensor]


@register_check("torch_export", needs=("is_deterministic",), slow=True, needs_copy=True)
def exported_equals_eager(case: Case) -> Measured:
    """One program of `torch.export` with a dynamic length equals the eager model on several lengths."""

    def export(logits: nn.Module, model: PreTrainedModel) -> Graph:
        shapes = {"tokens": {1: torch.export.Dim("length", min=2, max=case.clip_length(LONGEST, model))}}
        example = (random_tokens(model, case.clip_length(case.trained_length - 3, model)),)
        return torch.export.export(logits, example, dynamic_shapes=shapes, strict=False).module()

    return _graph_deviation(case, export)


@register_check("jit_trace", needs=("is_deterministic",), slow=True, needs_copy=True)
def traced_equals_eager(case: Case) -> Measured:
    """`torch.jit.trace` of one text equals the eager model on other texts of the same and of other lengths."""

    def trace(logits: nn.Module, model: PreTrainedModel) -> Graph:
        return torch.jit.trace(
            logits, (random_tokens(model, case.clip_length(case.trained_length - 3, model)),), check_trace=False
        )

    return _graph_deviation(case, trace)


@register_check("recompilation", needs=("is_deterministic", "compiles_whole"), slow=True, needs_copy=True)
def lengths_share_graphs(case: Case) -> Measured:
    """`torch.compile` compiles at most two graphs for texts of many lengths.

    The value is infinite if there are more.
    """
    graphs = []

    def count(graph: torch.fx.GraphModule, example: object) -> Callable:
        graphs.append(graph)
        return graph.forward

    deviation = _graph_deviation(case, lambda logits, _: torch.compile(logits, fullgraph=True, backend=count))
    return (math.inf, f"{len(graphs)} graphs") if len(graphs) > MAX_GRAPHS else deviation


class Logits(nn.Module):
    """A model as a function of token ids alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = output_module(model)  # resolved outside the traced function

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, or hidden states of a model without a vocabulary head: ``[row, token, width]``."""
        return token_states(self.model(input_ids=tokens, use_cache=False))


def _graph_deviation(case: Case, make: Callable[[nn.Module, Any], Graph], lengths: Iterable[int] = ()) -> Measured:
    """Largest deviation of a graph from its eager model over several lengths; infinite if ``make`` fails."""
    deviations = [(0.0, "no token")]
    with case.patched() as model, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compilers warn about the code they trace
        torch.compiler.reset()
        trained = case.trained_length
        requested = [*lengths] or [trained - 3, 5, trained, trained + 1, 2 * trained + 6]
        try:
            graph = make(Logits(model).eval(), model)
            for length in dict.fromkeys(case.clip_length(n, model) for n in requested):
                tokens = random_tokens(model, length, seed=length)
                deviations.append(located(max_deviation(graph(tokens).float(), forward(model, tokens)), f"of {length}"))
        except RuntimeError as error:  # the common base class of the tracers' errors
            return math.inf, f"no graph: {str(error).strip().partition(chr(10))[0]}"
        finally:
            torch.compiler.reset()
    return worst(deviations)


FLEX = "flex_attention"


@register_check(
    "torch_compile", needs=("is_deterministic", "compiles_whole"), slow=True, needs_copy=True
)  # torch.compile leaves an attribute on the model
def compiled_equals_eager(case: Case) -> Measured:
    """``torch.compile(fullgraph=True)``, run without code generation, equals the eager model.

    The value is infinite if the model cannot be traced as one graph.
    """

    def compiled(logits: nn.Module, model: PreTrainedModel) -> Graph:
        return torch.compile(logits, fullgraph=True, backend="aot_eager", dynamic=False)

    return _graph_deviation(case, compiled, [case.trained_length + 5])


@register_check("flex_attention", needs=("is_deterministic",), slow=True)
def flex_agrees(case: Case) -> Measured:
    """FlexAttention, uncompiled, equals the model's own attention backend, or refuses the scheme."""
    with case.patched() as model:
        if not is_torch_flex_attn_available():
            return 0.0, "no token: torch has no flex attention"
        tokens = random_tokens(model, case.clip_length(2 * case.trained_length + 6, model))
        expected = forward(model, tokens)
        try:
            # Uncompiled, which has the same arithmetic without minutes of compilation, and warns about speed.
            with attention_backend(model, FLEX), torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value, where = max_deviation(forward(model, tokens), expected)
        except BackendCannotCarry as refusal:
            return 0.0, f"no token: refused, {str(refusal).partition('. ')[0]}"
        except ValueError:
            return 0.0, f"no token: transformers has no {FLEX} for {type(model).__name__}"
    return value, f"{where}, {FLEX}"
