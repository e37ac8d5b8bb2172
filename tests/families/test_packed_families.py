"""Which families tell texts packed into a row apart by ``position_ids``: patched, the same as unpatched.

gpt-oss makes its masks without positions, so that a text attends to the one before it; docs/limits.md names it. Whether
a family does is measured here on the unpatched model first: where transformers changes, that page has to.
"""

from __future__ import annotations

import pytest
import torch

from hf_posenc import patch_model

from .tiny import tiny

FIRST, SECOND = 9, 7
ALONE = 1e-4  # of the largest logit


@pytest.mark.parametrize("scheme", [None, "host", "alibi"])
@pytest.mark.parametrize(
    ("family", "told_apart"),
    [("llama", True), ("qwen3", True), ("gemma3_text", True), ("gpt_oss", False), ("qwen3_next", False)],
)
def test_the_second_text_of_a_row(family: str, told_apart: bool, scheme: str | None) -> None:
    model = tiny(family)
    if scheme is not None:
        patch_model(model, scheme)
    row = torch.randint(3, 90, (1, FIRST + SECOND), generator=torch.Generator().manual_seed(5))
    positions = torch.cat([torch.arange(FIRST), torch.arange(SECOND)])[None]
    with torch.no_grad():
        alone = model(row[:, FIRST:], use_cache=False)[0]
        packed = model(row, position_ids=positions, use_cache=False)[0][:, FIRST:]
    gap = (packed - alone).abs().max() / alone.abs().max()
    assert (gap <= ALONE) == told_apart, gap
