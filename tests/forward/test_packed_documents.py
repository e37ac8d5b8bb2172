"""Each text of a packed row is computed as it is alone."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor
from transformers import DataCollatorWithFlattening

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import MaskMismatch

SCHEMES = ["yarn", "alibi", "t5", "self_extend", "dca", "sinks", "fire", "fox", "cope", "deberta", "transformer_xl"]
SIZES = [(20, 30, 14), (33, 1, 30)]
LENGTH = 64
ATOL = 2e-5  # float32 sums of two routes, on logits near 1


def positions_of(*rows: tuple[int, ...]) -> Tensor:
    return torch.stack([torch.cat([torch.arange(n) for n in sizes]) for sizes in rows])


def text(rows: int = 2) -> Tensor:
    return torch.randint(3, 96, (rows, LENGTH), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_with_borders_of_their_own_are_as_every_document_alone(scheme: str) -> None:
    model, ids = patch_model(tiny_model("llama"), scheme, factor=2), text()
    with torch.no_grad():
        packed = model(ids, position_ids=positions_of(*SIZES), use_cache=False).logits
        for row, sizes in enumerate(SIZES):
            for stop, size in zip(accumulate(sizes), sizes, strict=True):
                alone = model(ids[row : row + 1, stop - size : stop], use_cache=False).logits
                torch.testing.assert_close(packed[row : row + 1, stop - size : stop], alone, atol=ATOL, rtol=0)


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "self_extend", "fox"])
def test_a_flattening_collator_may_say_the_borders_as_well(scheme: str) -> None:
    model, ids = patch_model(tiny_model("llama"), scheme, factor=2), text(1)[0].tolist()
    collator = DataCollatorWithFlattening(return_seq_idx=True, return_flash_attn_kwargs=True)
    row = dict(collator([{"input_ids": ids[:40]}, {"input_ids": ids[40:]}]))
    del row["labels"]
    with torch.no_grad():
        expected = model(row["input_ids"], position_ids=row["position_ids"], use_cache=False).logits
        found = model(**row, use_cache=False).logits
        assert torch.equal(found, expected)
        other = torch.tensor([0, 30, LENGTH], dtype=torch.int32)
        with pytest.raises(MaskMismatch, match="packs 2 texts"):
            model(**row | {"cu_seq_lens_q": other, "cu_seq_lens_k": other}, use_cache=False)


def test_positions_that_jump_under_a_mask_of_ones_are_one_text() -> None:
    """As when training on rows whose positions skip: transformers makes no mask of documents then."""
    model, ids = patch_model(tiny_model("llama"), "yarn", factor=4), text(1)
    jumping = torch.arange(LENGTH)[None] + 40 * (torch.arange(LENGTH) >= 30)
    with torch.no_grad():
        whole = model(ids, position_ids=jumping, attention_mask=torch.ones_like(ids), use_cache=False).logits
        changed = ids.clone()
        changed[:, 0] += 1
        other = model(changed, position_ids=jumping, attention_mask=torch.ones_like(ids), use_cache=False).logits
    assert (whole - other)[:, -1].abs().max() > ATOL
