"""Two terms of the model itself, bounded scores (Gemma 2) and a sink (gpt-oss), against dense float64 sums."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import KeyBias, Terms, ToeplitzBias
from hf_posenc.forward.mix import with_sink

HEADS, LENGTH, DIM, SLOPE = 2, 9, 8, 0.3


def penalty(distance: Tensor) -> Tensor:
    """A linear penalty of the distance, ``[heads, …]``."""
    return -SLOPE * distance.float().expand(HEADS, *distance.shape)


BIASES = {
    "none": (),
    "toeplitz": (ToeplitzBias(penalty),),
    "key": (KeyBias(SLOPE * torch.arange(LENGTH).float().expand(1, HEADS, -1)),),
}


def dense(q: Tensor, k: Tensor, v: Tensor, *, biased: bool, softcap: float | None, sink: Tensor | None) -> Tensor:
    """One pair at a time, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    out, past = torch.zeros_like(q), k.shape[2] - q.shape[2]
    for head in range(HEADS):
        for i in range(q.shape[2]):
            scores = []
            for j in range(past + i + 1):
                score = float(q[0, head, i] @ k[0, head, j]) / math.sqrt(DIM)
                score = score if softcap is None else softcap * math.tanh(score / softcap)
                scores.append(score - (SLOPE * (past + i - j) if biased else 0.0))
            weights = [math.exp(score) for score in scores]
            total = sum(weights) + (0.0 if sink is None else math.exp(float(sink[head])))
            out[0, head, i] = sum(weight / total * v[0, head, j] for j, weight in enumerate(weights))
    return out


@pytest.mark.parametrize("queries", [LENGTH, 3, 1])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("softcap", [None, 0.8])
@pytest.mark.parametrize("sink", [None, (0.7, -1.0)])
def test_against_dense_sums(queries: int, bias: str, softcap: float | None, sink: tuple[float, ...] | None) -> None:
    draw = torch.Generator().manual_seed(0)
    q = 3 * torch.randn(1, HEADS, queries, DIM, generator=draw)
    k, v = (torch.randn(1, HEADS, LENGTH, DIM, generator=draw) for _ in range(2))
    positions = torch.arange(LENGTH)[None]
    ctx = PositionContext(positions[:, LENGTH - queries :], positions, causal=True, contiguous=True)
    own = None if sink is None else torch.tensor(sink)
    terms = Terms(bias=BIASES[bias])
    call = AttentionCall(
        (q,), (k,), v, terms if own is None else with_sink(terms, own), ctx, None, DIM**-0.5, softcap=softcap
    )
    wanted = dense(q, k, v, biased=bias != "none", softcap=softcap, sink=own)
    torch.testing.assert_close(dispatch.attend(call).double(), wanted, atol=2e-6, rtol=1e-5)


def test_two_sinks_are_one() -> None:
    """A model's own and a scheme's: both stand in the denominator."""
    both = with_sink(Terms(sink=torch.tensor([0.5])), torch.tensor([-0.2])).sink
    assert both is not None
    assert float(both) == pytest.approx(math.log(math.exp(0.5) + math.exp(-0.2)), rel=1e-6)
