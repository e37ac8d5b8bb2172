"""How does BERT's table of 512 rows reach 262 144 positions?

A table E of n rows; position a n + b gets E_b + α/(1 − α) (E_a − E_0): the digits b and a of base n, the second a
little quieter. The first n codes are the rows themselves, and n² positions come of n rows. Towards α = ½ the digits
become exchangeable: (5, 9) and (9, 5) come close.
"""

from lesson import apart, codes, show
from properties import targets
from properties.uniqueness import least_distance

own = codes("learned", 64, model="bert")
rows = []
for alpha in (0.1, 0.4, 0.49):
    target = targets("learned_hier", {"alpha": alpha}, model="bert")[0]
    code = codes("learned_hier", 1024, model="bert", alpha=alpha)
    swapped = apart(code[5 * 64 + 9], code[9 * 64 + 5])
    rows.append((alpha, target.reach, apart(code[:64], own), least_distance(code) / least_distance(own), swapped))
show(("α", "positions", "first rows moved by", "closest two, against rows", "(5, 9) against (9, 5)"), rows)
assert all(reach == 64**2 and moved < 1e-6 for _, reach, moved, *_ in rows)
assert rows[0][4] > rows[1][4] > rows[2][4]
