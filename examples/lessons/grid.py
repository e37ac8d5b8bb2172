"""What is the position of a patch of an image?

8 × 8 equal patches, read row by row. To know the image, a score must be one number for the rows between two patches
plus one for the columns. Read as a text, the first patch of a row is the neighbour of the last one of the row above, as
if they touched; with coordinates (rope_nd) it is not. Scores are less the patch's own.
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
columns = (
    "scheme",
    "what rows and columns do together",
    "score of the row above's last patch",
    "of the patch to the left",
)
show(columns, [(scheme, *values) for scheme, values in rows.items()])
for scheme, (together, above, left) in rows.items():
    assert scheme != "rope_nd" or (together < 1e-5 and abs(above - left) > 0.1)
    assert scheme != "rope" or (together > 0.1 and abs(above - left) < 1e-5)
