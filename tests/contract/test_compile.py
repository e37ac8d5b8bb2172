"""`torch.compile(fullgraph=True)` reads what eager mode reads."""

from __future__ import annotations

import math

import pytest
import torch

from hf_posenc.laws import Pair
from hf_posenc.laws.hosts import TRAINED
from hf_posenc.laws.reading import distance, read, text

from .matrix import BY_HOOK, EVERY


def compiled_gap(pair: Pair) -> float:
    """Deviation of the compiled model, graph-traced without a code generator, on two lengths."""
    with pair.patched() as model:
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
        tokens = text(model, pair.length(TRAINED + 5, model))
        with torch.no_grad():
            return distance(compiled(input_ids=tokens, use_cache=False).logits, read(model, tokens))[0]


@pytest.mark.parametrize("pair", [pair for pair in BY_HOOK if pair.model_name != "bert_decoder"], ids=str)
def test_compiled_equals_eager(pair: Pair) -> None:
    """A BERT decoder shares its modules with BERT and its masks with GPT-2: left to the full matrix."""
    if math.isinf(pair.limit("compiled")):
        pytest.xfail("an exception of hf_posenc.laws.limits")
    assert compiled_gap(pair) <= pair.limit("compiled")


@pytest.mark.full
@pytest.mark.parametrize("pair", EVERY, ids=str)
def test_every_pair_compiles(pair: Pair) -> None:
    if math.isinf(pair.limit("compiled")):
        pytest.xfail("an exception of hf_posenc.laws.limits")
    assert compiled_gap(pair) <= pair.limit("compiled")
