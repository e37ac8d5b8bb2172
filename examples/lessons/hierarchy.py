"""A table of n rows read as two digits of base n reaches n² positions."""

from __future__ import annotations

from codes import codes
from teaching import Result, Table, lesson
from tiny_models import apart

from hf_posenc.insight.properties import targets
from hf_posenc.insight.properties.uniqueness import least_distance

ALPHAS = (0.1, 0.4, 0.49)
SOME = 1024


@lesson("How does BERT's table of 512 rows reach 262 144 positions?")
def hierarchy() -> Result:
    """The small table of a bench read hierarchically with several α: the first rows, the reach, and twins."""
    own = codes(targets("learned", model="bert")[0], 64)
    rows = []
    for alpha in ALPHAS:
        target = targets("learned_hier", {"alpha": alpha}, model="bert")[0]
        reach = target.reach
        code = codes(target, min(reach, SOME))
        swapped = apart(code[5 * len(own) + 9], code[9 * len(own) + 5])
        rows.append((alpha, reach, apart(code[: len(own)], own), least_distance(code) / least_distance(own), swapped))
    kept = max(row[2] for row in rows) < 1e-6
    shows = f"""A table E of n = {len(own)} rows. Position a n + b gets E_b + α/(1 − α) (E_a − E_0): the digits b and a
        of base n, the second a little quieter. Compared are the first n codes with the rows themselves, the closest
        two of {SOME} codes with the closest two rows, and positions (5, 9) and (9, 5)."""
    clear = max(rows, key=lambda row: row[3])
    conclusion = (
        f"{rows[0][1]} positions come of {len(own)} rows, and the first {len(own)} are "
        f"{'as they were' if kept else 'moved'}. Codes lie furthest apart with α = {clear[0]}; towards ½ the digits "
        f"become exchangeable ({rows[-1][4]:.3f} between (5, 9) and (9, 5), against {rows[0][4]:.3f})."
    )
    columns = ("α", "positions", "first rows moved by", "closest two, against rows", "(5, 9) against (9, 5)")
    return shows, [Table(columns, tuple(rows))], conclusion


if __name__ == "__main__":
    hierarchy.main()
