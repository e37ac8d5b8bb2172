"""Packed rows are computed document by document, where their mask says that they are packed."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DataCollatorWithFlattening

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.core.context import PositionContext
from hf_posenc.errors import MaskMismatch
from hf_posenc.forward import call_plan
from hf_posenc.forward.packed_documents import PackedDocument, documents_of

SCHEMES = ["yarn", "alibi", "t5", "self_extend", "dca", "sinks", "fire", "fox", "cope", "deberta", "transformer_xl"]
SIZES = [(20, 30, 14), (33, 1, 30)]
LENGTH = 64
ATOL = 2e-5  # float32 sums of two routes, on logits near 1


def positions_of(*rows: tuple[int, ...]) -> Tensor:
    return torch.stack([torch.cat([torch.arange(n) for n in sizes]) for sizes in rows])


def context(*rows: tuple[int, ...], **more: Any) -> PositionContext:
    positions = positions_of(*rows)
    return PositionContext(positions, positions, **{"causal": True, "contiguous": False, **more})


def text(rows: int = 2) -> Tensor:
    return torch.randint(3, 96, (rows, LENGTH), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[PackedDocument, ...]]:
    """The documents that each plan is made of."""
    found: list[tuple[PackedDocument, ...]] = []

    def spied(*args: Any) -> tuple[PackedDocument, ...]:
        found.append(documents_of(*args))
        return found[-1]

    monkeypatch.setattr(call_plan, "documents_of", spied)
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_with_borders_of_their_own_are_as_every_document_alone(scheme: str, planned: Any) -> None:
    model, ids = patch_model(tiny_model("llama"), scheme, factor=2), text()
    planned.clear()  # of the effect probe
    with torch.no_grad():
        packed = model(ids, position_ids=positions_of(*SIZES), use_cache=False).logits
        assert [len(documents) for documents in planned] == [6]
        for row, sizes in enumerate(SIZES):
            for stop, size in zip(accumulate(sizes), sizes, strict=True):
                alone = model(ids[row : row + 1, stop - size : stop], use_cache=False).logits
                torch.testing.assert_close(packed[row : row + 1, stop - size : stop], alone, atol=ATOL, rtol=0)


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "self_extend", "fox"])
def test_a_flattening_collator_may_say_the_borders_as_well(scheme: str, planned: Any) -> None:
    model, ids = patch_model(tiny_model("llama"), scheme, factor=2), text(1)[0].tolist()
    collator = DataCollatorWithFlattening(return_seq_idx=True, return_flash_attn_kwargs=True)
    row = dict(collator([{"input_ids": ids[:40]}, {"input_ids": ids[40:]}]))
    del row["labels"]
    planned.clear()  # of the effect probe
    with torch.no_grad():
        expected = model(row["input_ids"], position_ids=row["position_ids"], use_cache=False).logits
        found = model(**row, use_cache=False).logits
        assert [len(documents) for documents in planned] == [2, 2]
        assert torch.equal(found, expected)
        other = torch.tensor([0, 30, LENGTH], dtype=torch.int32)
        with pytest.raises(MaskMismatch, match="packs 2 texts"):
            model(**row | {"cu_seq_lens_q": other, "cu_seq_lens_k": other}, use_cache=False)


@pytest.mark.parametrize("scheme", ["t5", "fire", "transformer_xl"])
def test_gradients_are_those_of_the_masked_route(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = patch_model(tiny_model("llama"), scheme, factor=2), text()
    gradients = []
    for documents in (documents_of, lambda *args: ()):
        monkeypatch.setattr(call_plan, "documents_of", documents)
        model.zero_grad()
        model(ids, position_ids=positions_of(*SIZES), use_cache=False, labels=ids).loss.backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, found in gradients[0].items():
        assert (found is None) == (gradients[1][name] is None), name
        if found is not None:
            torch.testing.assert_close(found, gradients[1][name], atol=ATOL, rtol=1e-3)


def test_positions_that_jump_under_a_mask_of_ones_are_one_text(planned: Any) -> None:
    """As when training on rows whose positions skip: transformers makes no mask of documents then."""
    model, ids = patch_model(tiny_model("llama"), "yarn", factor=4), text(1)
    jumping = torch.arange(LENGTH)[None] + 40 * (torch.arange(LENGTH) >= 30)
    with torch.no_grad():
        whole = model(ids, position_ids=jumping, attention_mask=torch.ones_like(ids), use_cache=False).logits
        changed = ids.clone()
        changed[:, 0] += 1
        other = model(changed, position_ids=jumping, attention_mask=torch.ones_like(ids), use_cache=False).logits
    assert not any(planned)
    assert (whole - other)[:, -1].abs().max() > ATOL
