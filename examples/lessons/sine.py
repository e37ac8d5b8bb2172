"""Why each sine needs its cosine."""

from __future__ import annotations

from typing import Any

from codes import coded, codes
from teaching import Result, Table, lesson

from hf_posenc.insight.properties.translation import fit, pairs

POSITION_PAIRS = ((0, 5), (100, 105), (1000, 1005))


@lesson("Why sine and cosine, when the sine alone is unique as well?")
def sine() -> Result:
    """Lengths of codes, products five positions apart, and the fitted map of a step, with and without cosines."""
    rows: list[tuple[Any, ...]] = []
    for kind, name in (("sincos", "sine and cosine"), ("sin", "sine alone"), ("cos", "cosine alone")):
        target = coded("sinusoidal", kind=kind)
        code = codes(target, 1006)
        products = [float(code[i] @ code[j]) for i, j in POSITION_PAIRS]
        found = fit(*pairs(target))
        assert found is not None
        rows.append((name, *(float(code[p] @ code[p]) for p in (0, 1, 2)), *products, found.residual))
    steady = [row[0] for row in rows if max(row[4:7]) - min(row[4:7]) < 1e-3 * max(row[4:7])]
    mapped = [row[0] for row in rows if row[7] < 1e-3]
    lose = [row[0] for row in rows if row[0] not in steady or row[0] not in mapped]
    shows = """Codes of 128 channels with all sines and cosines, or with zeros in place of half of them. As
        sin a · sin b = ½ (cos(a − b) − cos(a + b)), the product of sines alone depends on where the pair stands, not
        only on how far apart it is. The last column is how much of a step of five no linear map explains."""
    conclusion = (
        f"Pairs five apart have the same product everywhere with {' and '.join(steady) or 'none of them'}, and a step "
        f"is a linear map with {' and '.join(mapped) or 'none of them'}. One or the other is lost with "
        f"{' and '.join(lose) or 'none of them'}."
    )
    heads = tuple(f"⟨{i}, {j}⟩" for i, j in POSITION_PAIRS)
    columns = ("code", "|p|² at 0", "|p|² at 1", "|p|² at 2", *heads, "a step, unexplained")
    return shows, [Table(columns, tuple(rows))], conclusion


if __name__ == "__main__":
    sine.main()
