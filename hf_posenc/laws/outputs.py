"""Laws of what a patch does to the outputs: it shows, it is nothing where it says so, and the future does not leak."""

from __future__ import annotations

from hf_posenc.laws.book import law
from hf_posenc.laws.gap import Gap
from hf_posenc.laws.pair import Pair, settle
from hf_posenc.laws.reading import distance, read, text
from hf_posenc.patching import describe, scheme_of

LOUDER = 100.0  # a patch must move logits by this many times the model's own noise
QUIETEST = 1e-6  # noise of a model that repeats itself exactly: a rounding of float32, ten layers deep


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
