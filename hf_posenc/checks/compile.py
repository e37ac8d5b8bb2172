"""Checks of compilers: a compiled model, and FlexAttention, equal eager mode."""

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


@register_check(
    "torch_compile", needs_determinism=True, slow=True, needs_copy=True
)  # torch.compile leaves an attribute on the model
def compiled_equals_eager(case: Case) -> Deviation:
    """``torch.compile(fullgraph=True)``, run without code generation, equals the eager model.

    The value is infinite if the model cannot be traced as one graph.
    """
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 5, model))
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # from dynamo, about what it traces
                traced = forward_with_grad(compiled, tokens).float()  # type: ignore[arg-type]
        except RuntimeError as error:  # the common base class of the errors of dynamo and the tracers
            return case.deviation("torch_compile", math.inf, f"no graph: {str(error).partition(chr(10))[0]}")
        finally:
            torch._dynamo.reset()
        value, where = max_deviation(traced, forward(model, tokens))
    return case.deviation("torch_compile", value, f"{where}, traced")


@register_check("flex_attention", needs_determinism=True, slow=True)
def flex_agrees(case: Case) -> Deviation:
    """FlexAttention, uncompiled, equals the model's own attention backend, or refuses the scheme."""
    with case.patched() as model:
        if not is_torch_flex_attn_available():
            return case.deviation("flex_attention", 0.0, "no token: torch has no flex attention")
        tokens = random_tokens(model, case.clip_length(2 * case.trained_length + 6, model))
        expected, before = forward(model, tokens), model.config._attn_implementation
        try:
            model.set_attn_implementation(FLEX)
            # Uncompiled: the same arithmetic without minutes of compilation. It warns about speed.
            with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value, where = max_deviation(forward(model, tokens), expected)
        except BackendCannotCarry as refusal:
            return case.deviation("flex_attention", 0.0, f"no token: refused, {str(refusal).partition('. ')[0]}")
        except ValueError:
            return case.deviation(
                "flex_attention", 0.0, f"no token: transformers has no {FLEX} for {type(model).__name__}"
            )
        finally:
            model.set_attn_implementation(before)
    return case.deviation("flex_attention", value, f"{where}, {FLEX}")
