"""posenc_mlm_recall: the masks of posenc_mlm, with the answer at the far end of the text."""

from __future__ import annotations

import pytest
import torch

from hf_posenc.eval import evaluate
from hf_posenc.eval.lm.masked_lm import PosEncMLM

from .conftest import TRAINED

LENGTHS = [100, TRAINED, 2 * TRAINED]
SMALL = {"lengths": LENGTHS, "samples": 3, "scored": 20, "log_samples": True}


def test_the_target_is_in_front(bert, framed_tokenizer, text) -> None:
    evaluation = evaluate(bert, framed_tokenizer, tasks=["posenc_mlm_all"], text=text, keys=1, depths=[0.5], **SMALL)
    assert {r.task for r in evaluation.rows} == {"posenc_mlm", "posenc_mlm_recall", "posenc_passkey"}
    plain, recall = (evaluation.raw["samples"][task] for task in ("posenc_mlm", "posenc_mlm_recall"))
    rows = {(r.metric, r.length): r for r in evaluation.rows if r.task == "posenc_mlm_recall"}
    for number, length in enumerate(LENGTHS):
        hits = []
        for without, sample in zip(plain, recall, strict=True):
            _, ids, positions = sample["arguments"][number]
            _, near, same = without["arguments"][number]
            assert (len(ids), positions) == (length, same)
            assert ids[-21:-1] == near[-21:-1]  # the same target as without
            assert ids[1:21] == ids[-21:-1]  # whole, at the front
            masked = torch.tensor([ids])
            masked[0, positions] = framed_tokenizer.mask_token_id
            guess = bert(masked).logits[0, positions].argmax(-1)
            hits.append((guess == torch.tensor([ids[p] for p in positions])).double().mean().item())
        assert rows["recall", length].value == pytest.approx(sum(hits) / 3)
        assert rows["recall", length].stderr is not None


def test_a_model_that_looks_it_up_scores_one(bert, framed_tokenizer, text, monkeypatch) -> None:
    def oracle(self, ids, positions):
        return [-0.1] * len(positions), [ids[p] == ids[p - (len(ids) - 22)] for p in positions]

    monkeypatch.setattr(PosEncMLM, "scores", oracle)
    evaluation = evaluate(bert, framed_tokenizer, tasks=["posenc_mlm_recall"], text=text, **SMALL)
    assert {r.value for r in evaluation.rows if r.metric == "recall"} == {1.0}
