"""What is the position of a patch of an image?

An image has 8 × 8 equal patches. To represent it, a score must be the sum of a number for the rows between two patches
and a number for the columns. If patches are read row by row like a text, the first patch of a row is a neighbour of the
last patch of the row above; with coordinates (rope_nd) it is not. Each patch's score with itself is subtracted.
"""

import torch
from lesson import schemes, show
from properties import targets

SIDE = 8
rows = {}
for scheme in schemes("rope_nd", "rope"):
    scores = targets(scheme, model="llama")[0].constant_scores(torch.arange(SIDE * SIDE))
    by_offset = scores[:, -1].view(-1, SIDE, SIDE).flip(-1, -2)  # of the last patch, [heads, up, left]
    together = float((by_offset - by_offset[:, :, :1] - by_offset[:, :1]).abs().max())
    above, left = float(scores[0, SIDE * 3, SIDE * 3 - 1]), float(scores[0, SIDE * 3 + 4, SIDE * 3 + 3])
    rows[scheme] = together, above, left
columns = "scheme", "rest beyond rows + columns", "score of the last patch one row up", "of the left neighbour"
show(columns, [(scheme, *values) for scheme, values in rows.items()])
for scheme, (together, above, left) in rows.items():
    assert scheme != "rope_nd" or (together < 1e-5 and abs(above - left) > 0.1)
    assert scheme != "rope" or (together > 0.1 and abs(above - left) < 1e-5)
