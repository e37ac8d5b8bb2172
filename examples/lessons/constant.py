"""What does the causal mask say about positions, and what does it not say?

In a decoder, each token sees one token more than the token before it, which reveals the order of different words. If
all words are equal, attention mixes equal values: whatever their number and weights, the result is the same. A repeated
word therefore has the same output everywhere, unless a code is added to it. One different word at the start is enough
to distinguish the repetitions.
"""

import torch
from lesson import SAME, apart, hidden, patched, schemes, show

LENGTH = 24
repeated = torch.full((1, LENGTH), 9)
begun = torch.tensor([[1, *[9] * (LENGTH - 1)]])
different = torch.arange(3, 3 + LENGTH)[None]
swapped = different.clone()
swapped[:, [2, 3]] = different[:, [3, 2]]
rows = {}
for scheme in schemes("none", "rope", "alibi", "sinusoidal"):
    decoder = patched("llama", scheme)
    outputs = [hidden(decoder, ids)[-LENGTH + 1 :] for ids in (repeated, begun)]
    spreads = [float((x.amax(0) - x.amin(0)).max()) for x in outputs]
    rows[scheme] = *spreads, apart(hidden(decoder, different)[-1], hidden(decoder, swapped)[-1])
columns = "scheme", "one word repeated", "after another word", "two earlier words swapped, seen at the last"
show(columns, [(scheme, *values) for scheme, values in rows.items()])
flat = [scheme for scheme, values in rows.items() if values[0] < SAME]
assert "sinusoidal" not in flat
assert all(begun > SAME and order > SAME for _, begun, order in rows.values())
