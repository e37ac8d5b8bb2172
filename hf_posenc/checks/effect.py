"""Checks of what a patch does to the outputs: it shows, it is nothing where promised, the future does not leak."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case, reset_learned_parameters
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    forward,
    forward_with_grad,
    max_deviation,
    random_tokens,
)
from hf_posenc.checks.registry import register_check
from hf_posenc.checks.tolerances import EFFECT_FACTOR, NOISE_FLOOR
from hf_posenc.checks.training import gradients
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import describe, scheme_of
from hf_posenc.schemes.base import Scheme, implements

LONGEST = 4096  # tokens: the models of users may have been made for millions
SAYINGS = (  # hooks that say where tokens are; the others move them about in training, or drop them
    *("embed", "read_table", "rotation", "row_rotation", "regions", "prepare", "extra_key_channels"),
    *("bias", "values", "query_scale", "row_scale", "logit_scale", "sink", "visible"),
)


@register_check("effect")
def patch_changes_outputs(pair: Case) -> Deviation:
    """Logits differ from the unpatched model's by far more than two readings of one text do.

    The value is the movement wanted over the movement seen. A patch whose verdict is ``identity`` has none to show; the
    check ``identity`` measures it.
    """
    with pair.patched() as model:
        if describe(model).proof.verdict == "identity":
            return pair.gap("effect", 0.0, "verdict identity: nothing to show")
        tokens = random_tokens(model, pair.host_length(pair.length(4 * pair.trained, model)))
        after = forward(model, tokens)
    with pair.host() as model:
        before = forward(model, tokens)
        # The same text in a batch of two: other shapes, other kernels, the same meaning.
        noise = max(max_deviation(forward(model, tokens.expand(2, -1))[:1], before)[0], NOISE_FLOOR)
    moved, where = max_deviation(after, before)
    return pair.gap("effect", EFFECT_FACTOR * noise / max(moved, 1e-12), f"{where}, moved by {moved:.2g}")


@register_check("says")
def positions_change_outputs(pair: Case) -> Deviation:
    """A scheme that has a hook about places reads otherwise than ``none``, which only takes the host's positions away.

    The value is 1 where it does not, by no more than kernels round.
    """
    with pair.patched() as model:
        if not _speaks(scheme_of(model)):
            return pair.gap("says", 0.0, "no hook: nothing to say")
        tokens = random_tokens(model, pair.length(4 * pair.trained, model))
        after = forward(model, tokens)
    with pair.host() as model:
        patch_model(model, "none")
        silent = max_deviation(after, forward(model, tokens))[0] <= EFFECT_FACTOR * NOISE_FLOOR
    return pair.gap("says", float(silent), "every token" if silent else "no token")


@register_check("identity")
def nothing_moves_where_promised(pair: Case) -> Deviation:
    """Tokens under the scheme's ``unchanged_below``, and all where its verdict is ``identity``, are the host's own.

    A learned scheme that starts as the host is measured as it starts.
    """
    with pair.patched() as model:
        length = pair.host_length(pair.length(4 * pair.trained, model))
        identity = describe(model).proof.verdict == "identity"
        if identity:
            reset_learned_parameters(model)
        kept = length if identity else min(scheme_of(model).unchanged_below, length)
        if kept == 0:
            return pair.gap("identity", 0.0, "no token: none is promised")
        # An encoder's tokens see all others: only a text of promised tokens alone is promised.
        tokens = random_tokens(model, length if pair.causal else kept)
        after = forward(model, tokens)
    with pair.host() as model:
        value, where = max_deviation(after[:, :kept], forward(model, tokens)[:, :kept])
    return pair.gap("identity", value, where)


@register_check("causality", causal=True)
def future_is_unseen(pair: Case) -> Deviation:
    """Changing a token changes nothing before it: exactly, since its weight is zero in kernels of equal shape."""
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(2 * pair.trained + 6, model))
        before = forward(model, tokens)
        worst, place = 0.0, "no token"
        for changed in sorted({1, tokens.shape[1] // 2, tokens.shape[1] - 1}):
            other = tokens.clone()
            other[:, changed] = 3 + (other[:, changed] - 2) % 7  # another token of any vocabulary
            value, where = max_deviation(forward(model, other)[:, :changed], before[:, :changed])
            if not value <= worst:
                worst, place = value, f"{where}, when token {changed} changed"
    return pair.gap("causality", worst, place)


@register_check("memoryless")
def forward_passes_leave_nothing(pair: Case) -> Deviation:
    """A text reads bit-equally before and after others: longer ones than were asked for, batches, and a training step.

    Tables may be kept between calls, but what comes of them may not depend on who came first; nor on chance, unless the
    scheme says that it draws. Torch's generator, which is everybody's, stands where it stood.
    """
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(pair.trained + 1, model))
        before = forward(model, tokens)
        longer = random_tokens(model, pair.length(2 * model.config.max_position_embeddings + 1, model), rows=2, seed=1)
        forward(model, longer[:, :LONGEST])
        gradients(model, tokens.shape[1])
        found = [(*max_deviation(forward(model, tokens), before), "others before")]
        if not pair.randomises:
            found.append((*max_deviation(forward(model, tokens, seed=1), before), "another seed"))
            found.append((float(_draws(model, tokens)), "no token", "torch's generator, which moved"))
    value, where, why = max(found)
    return pair.gap("memoryless", value, f"{where}, {why}")


@register_check("modes", company=True)
def training_mode_agrees(pair: Case) -> Deviation:
    """A scheme in training mode reads bit-equally to one in evaluation; where recipes move tokens is not its doing."""
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(2 * pair.trained + 6, model))
        before = forward(model, tokens)
        parts = [part for module in model.modules() if isinstance(module, Scheme) for part in module.modules()]
        for part in parts:
            part.training = True
        try:
            value, where = max_deviation(forward(model, tokens), before)
        finally:
            for part in parts:
                part.training = False
    return pair.gap("modes", value, where)


def _draws(model: PreTrainedModel, tokens: Tensor) -> bool:
    """Whether a reading moves torch's generator, from wherever it stands."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(20_211_130)
        before = torch.get_rng_state()
        forward_with_grad(model, tokens)
        return not torch.equal(torch.get_rng_state(), before)


def _speaks(scheme: Scheme) -> bool:
    """Whether a scheme says where tokens are, in one hook or another."""
    return any(implements(scheme, hook) for hook in SAYINGS)
