"""BERT: targets are masked before they are scored, also where the answer stands at the far end of the text."""

from __future__ import annotations

import pytest
import torch

from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.lm.masked_lm import PosEncMLM

from .conftest import TRAINED
from .test_parity import requests


def test_rows_are_those_of_the_logged_samples(bert, framed_tokenizer, text) -> None:
    lengths = [TRAINED, 2 * TRAINED]
    evaluation = evaluate(
        bert, framed_tokenizer, tasks=["posenc_mlm"], lengths=lengths, samples=3, scored=20, text=text, log_samples=True
    )
    rows = {(r.metric, r.length): r.value for r in evaluation.rows}
    hidden_at_each_length = set()
    for number, length in enumerate(lengths):
        losses, hits = [], []
        for sample in evaluation.raw["samples"]["posenc_mlm"]:
            _, ids, positions = sample["arguments"][number]
            assert len(ids) == length
            assert min(positions) >= length - 21  # only among the scored tokens, never the last special one
            assert max(positions) < length - 1
            hidden_at_each_length.add((sample["doc"]["name"], tuple(ids[p] for p in positions)))
            masked = torch.tensor([ids])
            masked[0, positions] = framed_tokenizer.mask_token_id
            scores = bert(masked).logits[0, positions].double().log_softmax(-1)
            wanted = torch.tensor([ids[p] for p in positions])
            losses.append(-scores.gather(1, wanted[:, None]).mean().item())
            hits.append((scores.argmax(-1) == wanted).double().mean().item())
        assert rows["nll", length] == pytest.approx(sum(losses) / 3, rel=1e-5)
        assert rows["recall", length] == pytest.approx(sum(hits) / 3)
    assert len(hidden_at_each_length) == 3  # the same tokens are hidden at both lengths


@pytest.mark.parametrize("kind", ["loglikelihood_rolling", "generate_until"])
def test_what_a_masked_model_cannot_do_raises(kind: str, bert, framed_tokenizer) -> None:
    lm = PosEncMLM(bert, tokenizer=framed_tokenizer)
    with pytest.raises(NotMeasurable, match="posenc_mlm"):
        getattr(lm, kind)(requests(kind, [("text", {})]))


def test_masked_task_needs_a_mask_token(llama, tokenizer) -> None:
    from transformers import PreTrainedTokenizerFast

    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, bos_token="<end>", eos_token="<end>")
    with pytest.raises(NotMeasurable, match="mask token"):
        evaluate(llama, plain, tasks=["posenc_mlm"], lengths=[TRAINED])


LENGTHS = [100, TRAINED, 2 * TRAINED]
SMALL = {"lengths": LENGTHS, "samples": 3, "scored": 20, "log_samples": True}


def test_the_target_is_in_front(bert, framed_tokenizer, text) -> None:
    evaluation = evaluate(
        bert,
        framed_tokenizer,
        tasks=["posenc_mlm", "posenc_mlm_recall", "posenc_passkey"],
        text=text,
        keys=1,
        depths=[0.5],
        **SMALL,
    )
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
