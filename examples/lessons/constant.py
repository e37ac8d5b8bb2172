"""A decoder without positions knows the order from its mask, but not when every word is the same."""

from __future__ import annotations

from typing import Any

import torch
from teaching import Result, Table, lesson
from tiny_models import (
    SAME,
    apart,
    hidden,
    named,
    patched,
)

WORD, BEGIN, LENGTH = 9, 1, 24
TEXTS = {
    "one word repeated": torch.full((1, LENGTH), WORD),
    "a beginning, then one word repeated": torch.tensor([[BEGIN, *[WORD] * (LENGTH - 1)]]),
}
COLUMNS = ("scheme", *TEXTS, "two earlier words swapped, seen at the last")


@lesson(
    "What does the causal mask tell, and what not?",
    schemes=("none", "rope", "alibi", "sinusoidal"),
)
def constant(schemes: tuple[str, ...]) -> Result:
    """Outputs of a small decoder for a repeated word, with or without another word first, and for swapped words."""
    different = torch.arange(3, 3 + LENGTH)[None]
    swapped = different.clone()
    swapped[:, [2, 3]] = different[:, [3, 2]]
    rows: list[tuple[Any, ...]] = []
    for scheme in schemes:
        decoder = patched("llama", scheme)
        spreads = [spread(hidden(decoder, ids)[-LENGTH + 1 :]) for ids in TEXTS.values()]
        seen = apart(hidden(decoder, different)[-1], hidden(decoder, swapped)[-1])
        rows.append((scheme, *spreads, seen))
    shows = f"""A decoder reads {LENGTH} tokens. Its causal mask lets each token see one more than the token before it,
        which orders different words. Of equal words attention mixes equal values: however many, and by whatever
        weights, the result is one and the same. Columns two and three: how far outputs at equal words lie apart."""
    flat = [row[0] for row in rows if row[1] < SAME]
    counting = [row[0] for row in rows if row[1] >= SAME]
    helped = [row[0] for row in rows if row[0] in flat and row[2] >= SAME]
    ordered = [row[0] for row in rows if row[3] >= SAME]
    conclusion = (
        f"Equal words are all alike under {named(flat)}; one different word at the beginning is enough to tell them "
        f"apart under {named(helped)}. Only {named(counting)} can count without it. Order among different words is "
        f"seen under {named(ordered)}."
    )
    return shows, [Table(COLUMNS, tuple(rows))], conclusion


def spread(outputs: torch.Tensor) -> float:
    """Largest difference between rows ``[n, width]`` in one channel."""
    return float((outputs.amax(0) - outputs.amin(0)).max())


if __name__ == "__main__":
    constant.main()
