"""Laws of what a patch does to the outputs: it shows, it is nothing where it says so, and the future does not leak."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checks.case import Pair, settle
from hf_posenc.checks.deviation import Gap
from hf_posenc.checks.forward import (
    answer,
    distance,
    read,
    text,
)
from hf_posenc.checks.registry import law
from hf_posenc.checks.tolerances import LOUDER, QUIETEST
from hf_posenc.checks.training import gradients
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import describe, scheme_of
from hf_posenc.schemes.base import Scheme, has

LONGEST = 4096  # tokens: the models of users may have been made for millions
SAYINGS = (  # hooks that say where tokens are; the others move them about in training, or drop them
    *("embed", "read_table", "rotation", "row_rotation", "regions", "prepare", "carry"),
    *("bias", "values", "query_scale", "row_scale", "logit_scale", "sink", "visible"),
)


@law("effect")
def patch_shows(pair: Pair) -> Gap:
    """Logits differ from the unpatched model's by far more than two readings of one text do.

    The value is the movement wanted over the movement seen. A patch whose verdict is ``identity`` has none to show; the
    law ``identity`` measures it.
    """
    with pair.patched() as model:
        if describe(model).proof.verdict == "identity":
            return pair.gap("effect", 0.0, "verdict identity: nothing to show")
        tokens = text(model, pair.host_length(pair.length(4 * pair.trained, model)))
        after = read(model, tokens)
    with pair.host() as model:
        before = read(model, tokens)
        # The same text in a batch of two: other shapes, other kernels, the same meaning.
        noise = max(distance(read(model, tokens.expand(2, -1))[:1], before)[0], QUIETEST)
    moved, where = distance(after, before)
    return pair.gap("effect", LOUDER * noise / max(moved, 1e-12), f"{where}, moved by {moved:.2g}")


@law("says")
def scheme_says_something(pair: Pair) -> Gap:
    """A scheme that has a hook about places reads otherwise than ``none``, which only takes the host's positions away.

    The value is 1 where it does not, by no more than kernels round.
    """
    with pair.patched() as model:
        if not _speaks(scheme_of(model)):
            return pair.gap("says", 0.0, "no hook: nothing to say")
        tokens = text(model, pair.length(4 * pair.trained, model))
        after = read(model, tokens)
    with pair.host() as model:
        patch_model(model, "none")
        silent = distance(after, read(model, tokens))[0] <= LOUDER * QUIETEST
    return pair.gap("says", float(silent), "every token" if silent else "no token")


@law("identity")
def nothing_moves_where_promised(pair: Pair) -> Gap:
    """Tokens under the scheme's ``unchanged_below``, and all where its verdict is ``identity``, are the host's own.

    A learned scheme that starts as the host is measured as it starts.
    """
    with pair.patched() as model:
        length = pair.host_length(pair.length(4 * pair.trained, model))
        identity = describe(model).proof.verdict == "identity"
        if identity:
            settle(model)
        kept = length if identity else min(scheme_of(model).unchanged_below, length)
        if kept == 0:
            return pair.gap("identity", 0.0, "no token: none is promised")
        # An encoder's tokens see all others: only a text of promised tokens alone is promised.
        tokens = text(model, length if pair.causal else kept)
        after = read(model, tokens)
    with pair.host() as model:
        value, where = distance(after[:, :kept], read(model, tokens)[:, :kept])
    return pair.gap("identity", value, where)


@law("causality", causal=True)
def future_is_unseen(pair: Pair) -> Gap:
    """Changing a token changes nothing before it: exactly, since its weight is zero in kernels of equal shape."""
    with pair.patched() as model:
        tokens = text(model, pair.length(2 * pair.trained + 6, model))
        before = read(model, tokens)
        worst, place = 0.0, "no token"
        for changed in sorted({1, tokens.shape[1] // 2, tokens.shape[1] - 1}):
            other = tokens.clone()
            other[:, changed] = 3 + (other[:, changed] - 2) % 7  # another token of any vocabulary
            value, where = distance(read(model, other)[:, :changed], before[:, :changed])
            if not value <= worst:
                worst, place = value, f"{where}, when token {changed} changed"
    return pair.gap("causality", worst, place)


@law("memoryless")
def readings_leave_nothing(pair: Pair) -> Gap:
    """A text reads bit-equally before and after others: longer ones than were asked for, batches, and a training step.

    Tables may be kept between calls, but what comes of them may not depend on who came first; nor on chance, unless the
    scheme says that it draws. Torch's generator, which is everybody's, stands where it stood.
    """
    with pair.patched() as model:
        tokens = text(model, pair.length(pair.trained + 1, model))
        before = read(model, tokens)
        longer = text(model, pair.length(2 * model.config.max_position_embeddings + 1, model), rows=2, seed=1)
        read(model, longer[:, :LONGEST])
        gradients(model, tokens.shape[1])
        found = [(*distance(read(model, tokens), before), "others before")]
        if not pair.randomises:
            found.append((*distance(read(model, tokens, seed=1), before), "another seed"))
            found.append((float(_draws(model, tokens)), "no token", "torch's generator, which moved"))
    value, where, why = max(found)
    return pair.gap("memoryless", value, f"{where}, {why}")


@law("modes", company=True)
def training_reads_alike(pair: Pair) -> Gap:
    """A scheme in training mode reads bit-equally to one in evaluation; where recipes move tokens is not its doing."""
    with pair.patched() as model:
        tokens = text(model, pair.length(2 * pair.trained + 6, model))
        before = read(model, tokens)
        parts = [part for module in model.modules() if isinstance(module, Scheme) for part in module.modules()]
        for part in parts:
            part.training = True
        try:
            value, where = distance(read(model, tokens), before)
        finally:
            for part in parts:
                part.training = False
    return pair.gap("modes", value, where)


def _draws(model: PreTrainedModel, tokens: Tensor) -> bool:
    """Whether a reading moves torch's generator, from wherever it stands."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(20_211_130)
        before = torch.get_rng_state()
        answer(model, tokens)
        return not torch.equal(torch.get_rng_state(), before)


def _speaks(scheme: Scheme) -> bool:
    """Whether a scheme says where tokens are, in one hook or another."""
    return any(has(scheme, hook) for hook in SAYINGS)
