"""Trained numbers for distances: which distances share one, and what becomes of those never seen."""

from __future__ import annotations

import torch
from teaching import Result, Table, lesson
from tiny_models import named

from hf_posenc.insight.properties import targets
from hf_posenc.insight.properties.target import TRAINED

SPAN = 513
SAME = 1e-6


@lesson(
    "How many distances does a learned bias tell apart?",
    schemes=("rel_bias", "t5", "alibi", "kerple"),
)
def buckets(schemes: tuple[str, ...]) -> Result:
    """The bias of every distance up to 512: how many values there are, and from where on they are one."""
    rows = []
    for scheme in schemes:
        target = targets(scheme, model="llama")[0]
        curve = target.profile(torch.arange(min(SPAN, target.reach))).flip(-1)[0]
        values = 1 + int((curve.diff().abs() > SAME).sum())
        last = int((curve.diff().abs() > SAME).nonzero().max()) + 1 if values > 1 else 0
        parameters = sum(p.numel() for p in target.layer().scheme.parameters())
        rows.append((scheme, parameters, values, last, float(curve[-1] - curve[TRAINED - 1])))
    shows = f"""What the first head adds to scores at each distance up to {SPAN - 1}, in a model trained on {TRAINED}
        tokens. A table clipped at K has a number for each distance up to K and one for all beyond; T5 has ever wider
        buckets."""
    one = [f"{row[0]} (from {row[3]} on)" for row in rows if row[3] < SPAN - 1]
    all_apart = [row[0] for row in rows if row[3] == SPAN - 1]
    conclusion = (
        f"Far distances share one number under {named(one)}: defined everywhere, but blind there. Every distance has "
        f"its own under {named(all_apart)}."
    )
    columns = (
        "scheme",
        "parameters of a layer",
        "different neighbours",
        "last change at distance",
        "bias at 512 less 63",
    )
    return shows, [Table(columns, tuple(rows))], conclusion


if __name__ == "__main__":
    buckets.main()
