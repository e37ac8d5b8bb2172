"""What happens when words change places?

An encoder f reads a sentence and the same words in another order P. Without mask and positions scores become P S Pᵀ, so
that f(P x) = P f(x): outputs follow the words (equivariance). What is then pooled over the words, by mean or by
attention, is the same for both sentences (invariance). Under every encoding of position it is not.
"""

import torch
from lesson import SAME, apart, hidden, patched, schemes, show, tokens

ids, order = tokens("a man bites the dog that never barked"), torch.tensor((4, 0, 6, 2, 7, 1, 3, 5))
rows = {}
for scheme in ("none", *schemes("sinusoidal", "rope", "alibi")):
    encoder = patched("bert", scheme)
    straight, mixed = hidden(encoder, ids), hidden(encoder, ids[:, order])
    asks = torch.randn(straight.shape[1], generator=torch.Generator().manual_seed(0))
    pooled = [torch.softmax(outputs @ asks, dim=0) @ outputs for outputs in (straight, mixed)]
    rows[scheme] = apart(mixed, straight[order]), apart(mixed.mean(0), straight.mean(0)), apart(*pooled)
show(("scheme", "f(P x) against P f(x)", "mean over words", "attention over words"), [(k, *v) for k, v in rows.items()])
assert [scheme for scheme, moved in rows.items() if max(moved) < SAME] == ["none"]
