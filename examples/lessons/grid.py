"""RoPE in two dimensions: half of the pairs turn by the row, half by the column."""

from __future__ import annotations

import torch
from teaching import Result, Table, lesson
from tiny_models import named
from torch import Tensor

from hf_posenc.insight.properties import targets

HEIGHT, WIDTH = 8, 8  # the grid that a bench of 64 trained tokens has by default
CLOSE = 1e-5


@lesson("What is the position of a patch of an image?", schemes=("rope_nd", "rope"))
def grid(schemes: tuple[str, ...]) -> Result:
    """Equal patches of an image, row by row: do rows and columns count each for themselves?"""
    rows = []
    for scheme in schemes:
        scores = targets(scheme, model="llama")[0].constant_scores(torch.arange(HEIGHT * WIDTH))
        by_offset = scores[:, -1].view(-1, HEIGHT, WIDTH).flip(-1, -2)  # of the last patch, [heads, up, left]
        left, wrapped = (float(scores[0, WIDTH * 3, WIDTH * 3 - 1]), float(scores[0, WIDTH * 3 + 4, WIDTH * 3 + 3]))
        rows.append((scheme, uneven(scores), together(by_offset), left, wrapped))
    alone = [row[0] for row in rows if max(row[1], row[2]) < CLOSE]
    mixed = [row[0] for row in rows if row[0] not in alone]
    confused = [row[0] for row in rows if abs(row[3] - row[4]) < CLOSE]
    shows = f"""{HEIGHT} × {WIDTH} equal patches, read row by row. To know the image, a score must be one number for
        the rows between two patches plus one for the columns. Read as a text, the first patch of a row is the
        neighbour of the last one of the row above, as if they touched. Scores are less the patch's own."""
    conclusion = f"Rows and columns count each for themselves under {named(alone)}, and not under {named(mixed)}. " + (
        f"A neighbour in the row and the far end of the row above are the same to {named(confused)}."
        if confused
        else "Nobody takes the far end of the row above for a neighbour."
    )
    columns = (
        "scheme", "spread among equal offsets", "what rows and columns do together",
        "score of the row above's last patch", "score of the patch to the left",
    )  # fmt: skip
    return shows, [Table(columns, tuple(rows))], conclusion


def together(by_offset: Tensor) -> float:
    """Largest part of ``by_offset [heads, rows, columns]`` that is no sum of a row's and a column's own."""
    return float((by_offset - by_offset[:, :, :1] - by_offset[:, :1]).abs().max())


def uneven(scores: Tensor) -> float:
    """Largest spread of ``scores [heads, patches, patches]`` among seen pairs at one offset."""
    cells = torch.cartesian_prod(torch.arange(HEIGHT), torch.arange(WIDTH))
    offset = cells[:, None] - cells[None]
    names = offset[..., 0] * 4 * WIDTH + offset[..., 1]
    seen = scores.isfinite().all(0)
    groups = (scores[:, seen & (names == name)] for name in names[seen].unique())
    return max(float((group.amax(-1) - group.amin(-1)).max()) for group in groups)


if __name__ == "__main__":
    grid.main()
