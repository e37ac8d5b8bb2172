"""A product of sinusoidal codes tells how far, but not which way."""

from __future__ import annotations

import torch
from codes import coded, codes
from teaching import Result, Table, lesson

from hf_posenc.insight.properties.layer import gaussian

MIDDLE = 40
DISTANCES = (1, 2, 5, 20)


@lesson("Does a product of codes tell before from after?", schemes=("sinusoidal", "integer"))
def direction(schemes: tuple[str, ...]) -> Result:
    """Products with codes k before and k after, bare and through random projections of queries and keys."""
    rows = []
    for scheme in schemes:
        code = codes(coded(scheme), 2 * MIDDLE + 1)
        code = code / code.norm(dim=-1).mean()
        width = code.shape[1]
        for name, between in (
            ("as they are", torch.eye(width).double()),
            ("projected", gaussian(width, width) / width),
        ):
            products = code @ between.T @ code[MIDDLE]
            asymmetry = max(abs(float(products[MIDDLE + k] - products[MIDDLE - k])) for k in DISTANCES)
            rows.append((scheme, name, float(products[MIDDLE + 5]), float(products[MIDDLE - 5]), asymmetry))
    shows = f"""The code of position {MIDDLE} times those of later and of earlier positions; then with random matrices
        for queries and keys in between, as attention has them."""
    even = [f"{scheme} {name}" for scheme, name, *_, asymmetry in rows if asymmetry < 1e-6]
    uneven = [f"{scheme} {name}" for scheme, name, *_, asymmetry in rows if asymmetry >= 1e-6]
    conclusion = (
        f"Before and after look alike to {', '.join(even) or 'none'}; they differ for {', '.join(uneven) or 'none'}."
    )
    columns = ("scheme", "codes", "5 after", "5 before", f"largest difference at {', '.join(map(str, DISTANCES))}")
    return shows, [Table(columns, tuple(rows))], conclusion


if __name__ == "__main__":
    direction.main()
