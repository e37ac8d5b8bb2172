"""Checks of compilers: what is traced, and what flex attention computes, reads as it does eagerly."""

from __future__ import annotations

import math
import warnings

import torch
from transformers.utils import is_torch_flex_attn_available

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    forward,
    forward_with_grad,
    max_deviation,
    random_tokens,
)
from hf_posenc.checks.registry import register_check
from hf_posenc.errors import BackendCannotCarry

FLEX = "flex_attention"


@register_check("compiled", company=True, costly=True, copies=True)  # a compiled model keeps an attribute of dynamo's
def compiled_equals_eager(pair: Case) -> Deviation:
    """One graph of the whole model, traced and run without a code generator, equals the model that was traced.

    The value is infinite where there is no such graph.
    """
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(pair.trained + 5, model))
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of dynamo, about what it traces; the check says what came out
                traced = forward_with_grad(compiled, tokens).float()  # type: ignore[arg-type]  # a module it is
        except RuntimeError as error:  # of dynamo's own and of the tracer's: they have no other name in common
            return pair.gap("compiled", math.inf, f"no graph: {str(error).partition(chr(10))[0]}")
        finally:
            torch._dynamo.reset()
        value, where = max_deviation(traced, forward(model, tokens))
    return pair.gap("compiled", value, f"{where}, traced")


@register_check("flex", company=True, costly=True)
def flex_agrees(pair: Case) -> Deviation:
    """Flex attention, uncompiled, equals the model's own backend; where it cannot carry a scheme it says so."""
    with pair.patched() as model:
        if not is_torch_flex_attn_available():
            return pair.gap("flex", 0.0, "no token: torch has no flex attention")
        tokens = random_tokens(model, pair.length(2 * pair.trained + 6, model))
        wanted, before = forward(model, tokens), model.config._attn_implementation
        try:
            model.set_attn_implementation(FLEX)
            # Uncompiled it is the same arithmetic without minutes of C++ compilation, and warns that it is slow.
            with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value, where = max_deviation(forward(model, tokens), wanted)
        except BackendCannotCarry as refusal:
            return pair.gap("flex", 0.0, f"no token: refused, {str(refusal).partition('. ')[0]}")
        except ValueError:
            return pair.gap("flex", 0.0, f"no token: transformers has no {FLEX} for {type(model).__name__}")
        finally:
            model.set_attn_implementation(before)
    return pair.gap("flex", value, f"{where}, {FLEX}")
