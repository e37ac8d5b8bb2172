"""What does the causal mask tell, and what not?

A decoder lets each token see one more than the token before it, which orders different words. Of equal words attention
mixes equal values: however many, and by whatever weights, the result is one and the same. So a repeated word is
everywhere alike, unless a code is added to it; one different word at the beginning is enough to tell them apart.
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
