"""What happens when words change places?

An encoder f reads a sentence x and the same words in another order, P x. Without mask and positions, scores S become
P S Pᵀ, so f(P x) = P f(x): outputs follow their words (equivariance). Pooled over the words, by mean or by attention,
both sentences have the same output (invariance). With any encoding of position they do not.
"""

import torch
from lesson import SAME, apart, hidden, patched, schemes, show, tokens

ids, order = tokens("a man bites the dog that never barked"), torch.tensor((4, 0, 6, 2, 7, 1, 3, 5))
rows = {}
for scheme in ("none", *schemes("sinusoidal", "rope", "alibi")):
    encoder = patched("bert", scheme)
    original, permuted = hidden(encoder, ids), hidden(encoder, ids[:, order])
    query = torch.randn(original.shape[1], generator=torch.Generator().manual_seed(0))
    pooled = [torch.softmax(outputs @ query, dim=0) @ outputs for outputs in (original, permuted)]
    rows[scheme] = apart(permuted, original[order]), apart(permuted.mean(0), original.mean(0)), apart(*pooled)
show(("scheme", "f(P x) against P f(x)", "mean over words", "attention over words"), [(k, *v) for k, v in rows.items()])
assert [scheme for scheme, moved in rows.items() if max(moved) < SAME] == ["none"]
