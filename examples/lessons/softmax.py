"""ALiBi's penalty belongs before softmax; and what a whole row shares, softmax does not see."""

from __future__ import annotations

import torch
from teaching import Result, Table, lesson
from tiny_models import apart
from torch import Tensor

from hf_posenc.insight.properties import targets
from hf_posenc.insight.properties.layer import gaussian

COUNT = 32
CLOSE = 1e-6


@lesson("Is a penalty on distance added before softmax, or after?", schemes=("alibi",))
def softmax(schemes: tuple[str, ...]) -> Result:
    """Weights with a scheme's bias added to scores, to weights, and with a number for each row on top."""
    rows, conclusions = [], []
    for scheme in schemes:
        layer = targets(scheme, model="llama")[0].layer()
        x, positions = gaussian(1, COUNT, layer.geometry.width, seed=1), torch.arange(COUNT)[None]
        scores, bias = layer.scores(x, x, positions)[0], layer.biases(x, x, positions)[0].nan_to_num(nan=0.0)
        bias = bias - bias.diagonal(0, -2, -1)[..., None]
        before = torch.softmax(scores, dim=-1)
        seen = torch.ones(COUNT, COUNT).tril().bool()
        after = (torch.softmax(scores - bias, dim=-1) + bias).masked_fill(~seen, 0.0)
        shifted = torch.softmax(scores + gaussian(1, COUNT, 1, seed=2), dim=-1)
        for name, weights in (("before", before), ("after", after), ("before, and a number a row", shifted)):
            sums = weights.sum(-1)
            rows.append((scheme, name, float(weights.min()), float((sums - 1).abs().max()), apart(weights, before)))
        proper = rows[-2][2] >= 0 and rows[-2][3] < CLOSE
        blind = rows[-1][4] < CLOSE
        conclusions.append(
            f"{scheme}: added after softmax, weights {'are still' if proper else 'are no longer'} shares of 1. A "
            f"number for a whole row changes {'nothing' if blind else 'something'}"
            + ("; less such a number, the bias is one of the key alone." if blind and of_key_alone(bias) else ".")
        )
    shows = """Some texts say that the penalty is added to attention weights. In the paper, and here, it is added to
        scores before softmax. All three are computed: the least weight, how far sums of rows are from 1, and how far
        weights are from those of the paper."""
    columns = ("scheme", "bias added", "least weight", "sum of a row less 1", "difference to the first")
    return shows, [Table(columns, tuple(rows))], " ".join(conclusions)


def of_key_alone(bias: Tensor) -> bool:
    """Whether rows of ``bias [heads, n, n]`` differ by a number each, among the keys both see."""
    less = bias - bias[..., :1]
    below = less.diff(dim=1)  # a row less the one before it, which sees all keys but the last
    moved = below.masked_fill(~torch.ones(below.shape[-2:]).tril().bool(), 0.0)
    return bool(bias.abs().max() > CLOSE) and float(moved.abs().max()) < CLOSE


if __name__ == "__main__":
    softmax.main()
