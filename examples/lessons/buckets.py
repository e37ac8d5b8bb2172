"""How many distances does a learned bias tell apart?

The lesson shows the bias of the first head at each distance up to 512, in a model trained on 64 tokens. A table clipped
at K has a number for each distance up to K, and one for all larger distances. T5's buckets grow with the distance: the
bias is defined everywhere, but does not distinguish large distances. ALiBi and KERPLE have a number for every distance.
"""

import torch
from lesson import schemes, show
from properties import targets

SPAN = 513
rows = {}
for scheme in schemes("rel_bias", "t5", "alibi", "kerple"):
    target = targets(scheme, model="llama")[0]
    curve = target.profile(torch.arange(min(SPAN, target.reach))).flip(-1)[0]
    changes = (curve.diff().abs() > 1e-6).nonzero().flatten()
    parameters = sum(p.numel() for p in target.layer().scheme.parameters())
    rows[scheme] = parameters, 1 + len(changes), int(changes.max()) + 1 if len(changes) else 0
columns = "scheme", "parameters of a layer", "different neighbours", "last change at distance"
show(columns, [(scheme, *values) for scheme, values in rows.items()])
for scheme, (_, _, last) in rows.items():
    assert (last == SPAN - 1) == (scheme in ("alibi", "kerple")) or scheme not in ("rel_bias", "t5", "alibi", "kerple")
