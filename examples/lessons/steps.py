"""Why not count 0, 1, 2 …, or from 0 to 1?

Counting has no bound: codes grow far above the embeddings of words, whose channels are about 1. Dividing the interval
from 0 to 1 gives no fixed step: it is ½ in a text of three words, and ⅓ in one of four. A sinusoid has a fixed step and
is bounded by 1.
"""

from lesson import codes, schemes, show

rows = {}
for scheme in schemes("integer", "norm01", "sinusoidal"):
    for length in (3, 4, 5, 100):
        code = codes(scheme, length)
        rows[scheme, length] = float((code[1] - code[0]).norm() / code.shape[1] ** 0.5), float(code.abs().max())
columns = "scheme", "words", "first step per channel", "largest number"
show(columns, [(*key, *value) for key, value in rows.items()])
for (scheme, length), (step, largest) in rows.items():
    assert scheme != "norm01" or abs(step - 1 / (length - 1)) < 1e-6
    assert scheme != "integer" or (step, largest) == (1.0, length - 1.0)
