"""How does BERT's table of 512 rows reach 262 144 positions?

With a table E of n rows, position a n + b has the code E_b + α/(1 − α) (E_a − E_0): b and a are its digits in base n,
and a has a smaller weight. The first n codes are the rows themselves, so n rows give n² positions. As α approaches ½,
the digits become interchangeable: the codes of (5, 9) and (9, 5) approach each other.
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
