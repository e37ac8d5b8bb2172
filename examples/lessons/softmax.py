"""Is a penalty on distance added before softmax, or after?

Some texts say that the penalty is added to attention weights. In the paper, and here, it is added to scores before
softmax. If it is added after softmax, the weights no longer sum to 1. A number added to a whole row of scores changes
nothing, so ALiBi can be written as a bias that depends on the key alone.
"""

import torch
from lesson import apart, schemes, show
from properties import targets
from properties.layer import gaussian

COUNT = 32
for scheme in schemes("alibi"):
    layer = targets(scheme, model="llama")[0].layer()
    x, positions = gaussian(1, COUNT, layer.geometry.width, seed=1), torch.arange(COUNT)[None]
    scores, bias = layer.scores(x, x, positions)[0], layer.biases(x, x, positions)[0].nan_to_num(nan=0.0)
    bias = bias - bias.diagonal(0, -2, -1)[..., None]
    before = torch.softmax(scores, dim=-1)
    weights = {
        "before": before,
        "after": (torch.softmax(scores - bias, dim=-1) + bias).tril(),
        "before, and a number per row": torch.softmax(scores + gaussian(1, COUNT, 1, seed=2), dim=-1),
    }
    rows = {name: (float(w.min()), float((w.sum(-1) - 1).abs().max()), apart(w, before)) for name, w in weights.items()}
    columns = scheme, "least weight", "sum of a row less 1", "difference to the first"
    show(columns, [(name, *values) for name, values in rows.items()])
    of_key = (bias - bias[..., :1]).diff(dim=1).tril()  # a row less the one before it, which sees all keys but the last
    assert scheme != "alibi" or float(of_key.abs().max()) < 1e-6
    assert rows["after"][0] < 0 < 1e-6 < rows["after"][1]
    assert rows["before, and a number per row"][2] < 1e-6
