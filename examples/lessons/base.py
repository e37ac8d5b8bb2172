"""What 10 000 is for: how slow the slowest hand is, and how far away positions can still be compared."""

from __future__ import annotations

import math
from typing import Any

from codes import coded, codes
from teaching import Result, Table, lesson

from hf_posenc.insight.properties.uniqueness import least_distance

CHOICES: dict[str, dict[str, Any]] = {
    "base 10": {"base": 10.0}, "base 100": {"base": 100.0}, "base 10 000": {}, "base 1 000 000": {"base": 1e6},
    "10 000, evenly spaced": {"schedule": "linear"}, "10 000, slowest first": {"reverse": True},
}  # fmt: skip
DISTANCES = (1, 4, 16, 64, 256)
COUNT = 1024
FADED = 0.1


@lesson("Why 10 000, and why in geometric steps?")
def base() -> Result:
    """Inner products at several distances and the closest two of 1024 positions, for bases and schedules."""
    rows: list[tuple[Any, ...]] = []
    for name, options in CHOICES.items():
        code = codes(coded("sinusoidal", **options), COUNT)
        products = [float((code[0] @ code[k]) / (code[0] @ code[0])) for k in DISTANCES]
        rows.append((name, *products, least_distance(code)))
    by_name = {row[0]: row for row in rows}
    usual, small = by_name["base 10 000"], by_name["base 10"]
    even, reversed_order = by_name["10 000, evenly spaced"], by_name["10 000, slowest first"]
    far = [name for name, *products, _ in rows if products == sorted(products, reverse=True) and products[-1] > FADED]
    shows = f"""Normalised products of codes k positions apart, for several bases; then with frequencies in even steps,
        and with the same ones in reverse. The slowest hand of base 10 000 takes up to 2π · 10 000 = {
        2 * math.pi * 1e4:.0f} positions per rotation. The last column is how close two of {COUNT} codes come."""
    same = max(abs(a - b) for a, b in zip(usual[1:], reversed_order[1:], strict=True)) < 1e-4
    left = "nothing is left for" if abs(even[3]) < FADED else "something is left for"
    conclusion = (
        f"Products fall all the way, and stay above {FADED} at distance {DISTANCES[-1]}, with: "
        f"{'; '.join(far) or 'none'}. The closest two of {COUNT} positions are {small[-1]:.2f} apart with base 10, and "
        f"{usual[-1]:.2f} with 10 000. In even steps the product is down to {even[3]:.2f} at distance {DISTANCES[2]}: "
        f"{left} far positions. "
        + ("Reversed frequencies change nothing." if same else "Reversed frequencies change the products.")
    )
    return shows, [Table(("frequencies", *(f"k = {k}" for k in DISTANCES), "closest two"), tuple(rows))], conclusion


if __name__ == "__main__":
    base.main()
