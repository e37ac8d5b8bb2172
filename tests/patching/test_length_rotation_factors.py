"""A factor of each query's logits beside a bias, where every query has the rotation of its own length.

Queries are computed in runs of equal length; each run used to take the factors of the first queries of the call.
"""

from __future__ import annotations

import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.checks.reference_model import reference_logits
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model

LENGTH, PADDING, LIMIT = 2 * TRAINED_LENGTH, 5, 1e-4


@pytest.mark.parametrize("scheme", ["dynamic_yarn+t5", "dynamic_yarn+alibi", "dynamic_ntk+ssmax+t5"])
@torch.no_grad()
def test_factors_are_those_of_the_queries(scheme: str) -> None:
    model = patch_model(tiny_model("llama"), scheme, factor=4)
    ids = torch.randint(3, 60, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    alone = model(ids).logits
    assert (alone - reference_logits(model, ids)).abs().max() <= LIMIT
    short = ids[:, PADDING:]
    batch = torch.cat((ids, torch.cat((torch.zeros(1, PADDING, dtype=torch.long), short), dim=1)))
    mask = torch.ones_like(batch)
    mask[1, :PADDING] = 0
    padded = model(batch, attention_mask=mask).logits
    assert (padded[0] - alone[0]).abs().max() <= LIMIT
    assert (padded[1, PADDING:] - model(short).logits[0]).abs().max() <= LIMIT
