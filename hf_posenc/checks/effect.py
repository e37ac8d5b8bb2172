"""Checks of outputs: the patch has an effect, except where none is promised, and stays causal and stateless."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case, reset_learned_parameters
from hf_posenc.checks.forward import forward, forward_with_grad, max_deviation, random_tokens
from hf_posenc.checks.registry import Measured, located, register_check, worst
from hf_posenc.checks.tolerances import EFFECT_FACTOR, NOISE_FLOOR
from hf_posenc.checks.training import gradients
from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import describe, scheme_of
from hf_posenc.schemes.base import POSITION_HOOKS, Scheme, implements

LONGEST = 4096  # tokens, for models with position limits of millions


@register_check("effect")
def patch_changes_outputs(case: Case) -> Measured:
    """The patch moves outputs by at least 100 times the difference between two equivalent forward passes.

    The value is the required movement divided by the measured one. The check ``identity`` measures patches whose
    verdict is ``identity``.
    """
    with case.patched() as model:
        if describe(model).proof.verdict == "identity":
            return 0.0, "the patch is an identity and has no effect to measure"
        tokens = random_tokens(model, case.clip_length_unpatched(case.clip_length(4 * case.trained_length, model)))
        after = forward(model, tokens)
    with case.unpatched() as model:
        before = forward(model, tokens)
        # The same text in a batch of two: other shapes and kernels, mathematically equal.
        noise = max(max_deviation(forward(model, tokens.expand(2, -1))[:1], before)[0], NOISE_FLOOR)
    moved, where = max_deviation(after, before)
    return EFFECT_FACTOR * noise / max(moved, 1e-12), f"{where}, moved by {moved:.2g}"


@register_check("position_effect")
def positions_change_outputs(case: Case) -> Measured:
    """A scheme with a position hook differs from ``none``, which only removes the model's own positions.

    The value is 1 if it does not, up to rounding.
    """
    with case.patched() as model:
        if not any(implements(scheme_of(model), hook) for hook in POSITION_HOOKS):
            return 0.0, "no position hook"
        tokens = random_tokens(model, case.clip_length(4 * case.trained_length, model))
        after = forward(model, tokens)
    with case.unpatched() as model:
        patch_model(model, "none")
        without_effect = max_deviation(after, forward(model, tokens))[0] <= EFFECT_FACTOR * NOISE_FLOOR
    return float(without_effect), "every token" if without_effect else "no token"


@register_check("identity")
def unchanged_where_promised(case: Case) -> Measured:
    """Tokens below ``unchanged_below`` equal the unpatched model's; all up to the target length in an ``identity``.

    A learned scheme whose patch has that verdict is measured with its initial parameters.
    """
    with case.patched() as model:
        length = case.clip_length_unpatched(case.clip_length(4 * case.trained_length, model))
        report = describe(model)
        identity = report.proof.verdict == "identity"
        if identity:
            length = min(length, report.target_length)  # beyond it, a window hides keys and dynamic scalings begin
            reset_learned_parameters(model)
        unchanged = length if identity else min(scheme_of(model).unchanged_below, length)
        if unchanged == 0:
            return 0.0, "no token: the scheme promises none"
        # Encoder tokens attend to all others, so the promise covers a text of these tokens alone.
        tokens = random_tokens(model, length if case.causal else unchanged)
        after = forward(model, tokens)
    with case.unpatched() as model:
        return max_deviation(after[:, :unchanged], forward(model, tokens)[:, :unchanged])


@register_check("causality", needs=("causal",))
def future_has_no_effect(case: Case) -> Measured:
    """Changing a token changes no earlier output, bit for bit: its attention weight there is exactly zero."""
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(2 * case.trained_length + 6, model))
        before = forward(model, tokens)
        measured = []
        for changed in sorted({1, tokens.shape[1] // 2, tokens.shape[1] - 1}):
            other = tokens.clone()
            other[:, changed] = 3 + (other[:, changed] - 2) % 7  # another token id, within any vocabulary
            moved = max_deviation(forward(model, other)[:, :changed], before[:, :changed])
            measured.append(located(moved, f"when token {changed} changed"))
    return worst(measured)


@register_check("stateless")
def forward_is_stateless(case: Case) -> Measured:
    """A text's output is bit-equal before and after longer texts, batches and a backward pass.

    Cached tables must not depend on earlier texts. Unless the scheme draws positions, outputs must not depend on
    torch's random generator, and a forward pass must not advance it.
    """
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 1, model))
        before = forward(model, tokens)
        longer = random_tokens(
            model, case.clip_length(2 * model.config.max_position_embeddings + 1, model), rows=2, seed=1
        )
        forward(model, longer[:, :LONGEST])
        gradients(model, tokens.shape[1])
        measured = [located(max_deviation(forward(model, tokens), before), "after other texts")]
        if case.is_deterministic:
            measured.append(located(max_deviation(forward(model, tokens, seed=1), before), "with another seed"))
            advanced = float(_advances_torch_rng(model, tokens))
            measured.append((advanced, "no token, torch's random generator was advanced"))
    return worst(measured)


@register_check("training_mode", needs=("is_deterministic",))
def training_mode_equals_evaluation(case: Case) -> Measured:
    """Outputs are bit-equal with the scheme, but not the rest of the model, in training mode."""
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(2 * case.trained_length + 6, model))
        before = forward(model, tokens)
        parts = [part for module in model.modules() if isinstance(module, Scheme) for part in module.modules()]
        for part in parts:
            part.training = True
        try:
            return max_deviation(forward(model, tokens), before)
        finally:
            for part in parts:
                part.training = False


def _advances_torch_rng(model: PreTrainedModel, tokens: Tensor) -> bool:
    """Whether a forward pass advances torch's random generator."""
    with torch.no_grad(), fixed_seed(20_211_130):
        before = torch.get_rng_state()
        forward_with_grad(model, tokens)
        return not torch.equal(torch.get_rng_state(), before)
