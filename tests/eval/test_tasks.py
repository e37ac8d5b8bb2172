"""The tasks, through lm-eval: what they ask, and that their numbers are those of the model."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch

from hf_posenc import describe, is_patched, patch_model
from hf_posenc.checkpoints.export import export
from hf_posenc.errors import LengthContradiction, PosEncError
from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.evaluation import default_lengths
from hf_posenc.eval.lm.load import language_model
from hf_posenc.eval.lm.measurable import trained_length_of_lm
from hf_posenc.eval.tasks.sweep import Sweep

from .conftest import TRAINED, nats

LENGTHS = [TRAINED, 2 * TRAINED]
SMALL = {"lengths": LENGTHS, "samples": 3, "scored": 16, "keys": 2, "depths": [0.0, 1.0]}


def by_name(evaluation) -> dict:
    return {(r.task, r.metric, r.length, r.depth): r for r in evaluation.rows}


def test_reported_losses_are_those_of_the_logged_samples(llama, tokenizer, text) -> None:
    """Recomputed from the logged texts by a plain forward of the plain model."""
    evaluation = evaluate(llama, tokenizer, text=text, log_samples=True, **SMALL)
    rows = by_name(evaluation)
    for number, length in enumerate(LENGTHS):
        losses = []
        for sample in evaluation.raw["samples"]["posenc_ppl"]:
            context, target = sample["arguments"][number]
            losses.append(nats(llama, tokenizer(context + target)["input_ids"], 16).mean().item())
        row = rows["posenc_ppl", "nll", length, None]
        assert row.value == pytest.approx(sum(losses) / 3, rel=1e-5)
        assert row.stderr == pytest.approx(torch.tensor(losses).std().item() / math.sqrt(3), rel=1e-4)
        perplexity = rows["posenc_ppl", "ppl", length, None]
        assert perplexity.value == pytest.approx(math.exp(row.value))
        assert perplexity.stderr == pytest.approx(perplexity.value * row.stderr)
        assert row.n == 3


def test_passkeys_are_teacher_forced_greedy(llama, tokenizer, text) -> None:
    evaluation = evaluate(llama, tokenizer, tasks=["posenc_passkey"], log_samples=True, **SMALL)
    rows = by_name(evaluation)
    cells = [(length, depth) for length in LENGTHS for depth in (0.0, 1.0)]
    found: dict = {cell: [] for cell in cells}
    losses: dict = {cell: [] for cell in cells}
    for sample in evaluation.raw["samples"]["posenc_passkey"]:
        key = sample["doc"]["name"]
        for cell, (prompt, answer) in zip(cells, sample["arguments"], strict=True):
            assert prompt.count(key) == 2  # the same key in every cell
            assert answer == f" {key}"
            whole, before = tokenizer(prompt + answer)["input_ids"], tokenizer(prompt)["input_ids"]
            assert len(whole) <= cell[0]
            target = torch.tensor(whole[len(before) :])
            assert len(target) > 1  # or a sum would be a mean
            logits = llama(torch.tensor([whole])).logits[0, len(before) - 1 : -1].double()
            found[cell].append(torch.equal(logits.argmax(-1), target))
            losses[cell].append(torch.nn.functional.cross_entropy(logits, target).item())
    for (length, depth), hits in found.items():
        assert rows["posenc_passkey", "acc", length, depth].value == sum(hits) / len(hits)
        nll = rows["posenc_passkey", "nll", length, depth].value
        assert nll == pytest.approx(sum(losses[length, depth]) / 2, rel=1e-5)
    assert rows["posenc_passkey", "nll", TRAINED, None].value == pytest.approx(
        sum(rows["posenc_passkey", "nll", TRAINED, depth].value for depth in (0.0, 1.0)) / 2
    )


def test_a_live_model_is_as_before(llama, tokenizer, text, tmp_path) -> None:
    """Schemes can be measured one by one, and an error leaves none behind; one of the caller's own stays."""
    call = {"tasks": ["posenc_ppl"], "text": text, **SMALL}
    schemes = [evaluate(llama, tokenizer, scheme=name, factor=2, **call).rows[0].scheme for name in ("yarn", "alibi")]
    assert schemes == ["yarn", "alibi"]
    assert not is_patched(llama)
    with pytest.raises(PosEncError):
        evaluate(llama, tmp_path / "no tokenizer", scheme="yarn", factor=2, **call)
    assert not is_patched(llama)
    evaluate(patch_model(llama, "pi", factor=2), tokenizer, **call)
    assert describe(llama).scheme == "pi"


@pytest.mark.parametrize("scheme", ["yarn", "llama3"])
def test_lengths_are_of_the_weights_and_not_of_their_form(scheme: str, llama, tokenizer, tmp_path) -> None:
    """A patched model and its export: trained length and default lengths. Negative control: the model before."""
    before = language_model(copy.deepcopy(llama), tokenizer)
    patched = patch_model(llama, scheme, factor=4)
    export(patched, tmp_path)
    forms = [language_model(model, tokenizer) for model in (patched, type(llama).from_pretrained(tmp_path))]
    assert [trained_length_of_lm(lm) for lm in forms] == [TRAINED, TRAINED]
    assert [default_lengths(lm) for lm in forms] == [[TRAINED, 2 * TRAINED, 4 * TRAINED]] * 2
    assert default_lengths(before) == [TRAINED]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "no lengths"),
        ({"lengths": [64.5]}, "lengths"),
        ({"lengths": "many"}, "lengths"),
        ({"lengths": [64], "depths": [1.5]}, "depths"),
        ({"lengths": [64], "samples": 0}, "samples"),
        ({"lengths": [64, 512], "longest": 256}, "longest"),
    ],
    ids=str,
)
def test_bad_metadata_is_refused(metadata: dict, message: str) -> None:
    with pytest.raises((TaskOptionOutOfRange, LengthContradiction), match=message):
        Sweep.of(metadata)


def test_importing_the_package_is_light() -> None:
    heavy = "import sys, hf_posenc.eval; print([m for m in ('torch', 'transformers', 'lm_eval') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout == "[]\n"
