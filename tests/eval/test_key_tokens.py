"""Key tokens are those of a plain float64 computation on the unpatched model, for every scheme and length."""

from __future__ import annotations

import copy
import math

import pytest

from hf_posenc import patch_model
from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import LengthTooShort, NotMeasurable

from .conftest import TRAINED, byte_level, nats

LENGTHS = [TRAINED, 2 * TRAINED]
SCORED, SHORT = 16, 8
OPTIONS = {"short": SHORT, "gain": 0.5, "likelihood": -6.0}
SMALL = {"tasks": ["posenc_key_tokens"], "lengths": LENGTHS, "samples": 4, "scored": SCORED, "log_samples": True}


@pytest.mark.parametrize("kind", ["plain", "with a begin token"])
def test_key_tokens_are_the_unpatched_models(llama, tokenizer, framed_tokenizer, kind: str) -> None:
    tokenizer = tokenizer if kind == "plain" else framed_tokenizer
    plain = copy.deepcopy(llama)
    patch_model(llama, "yarn", target_length=2 * TRAINED)
    evaluation = evaluate(llama, tokenizer, options=OPTIONS, **SMALL)
    rows = {(r.metric, r.length): r for r in evaluation.rows}
    lost, counts = {length: [] for length in LENGTHS}, []
    for sample in evaluation.raw["samples"]["posenc_key_tokens"]:
        _, front, ids, *_ = sample["arguments"][0]
        long = nats(plain, [*front, *ids[len(front) - TRAINED :]], SCORED)
        short = nats(plain, [*front, *ids[-SCORED - SHORT :]], SCORED)
        key = (short - long > OPTIONS["gain"]) & (-long > OPTIONS["likelihood"])
        counts.append(int(key.sum()))
        for length in LENGTHS:
            losses = nats(llama, [*front, *ids[len(front) - length :]], SCORED)
            lost[length].append(float(losses[key].sum()))
    assert 0 < sum(counts) < 4 * SCORED  # else the test compares nothing
    for length in LENGTHS:
        assert rows["keys", length].value == sum(counts) / 4
        assert rows["key_nats", length].value == pytest.approx(sum(lost[length]) / 4, abs=1e-4)
        mean = sum(lost[length]) / sum(counts)
        assert rows["nll", length].value == pytest.approx(mean, abs=1e-5)
        assert rows["long_ppl", length].value == pytest.approx(math.exp(mean), rel=1e-4)


def test_the_choice_does_not_depend_on_scheme_or_length(llama, tokenizer) -> None:
    def keys(**options) -> list[float]:
        found = evaluate(llama, tokenizer, options=OPTIONS, longest=2 * TRAINED, **SMALL | options)
        samples = found.raw["samples"]["posenc_key_tokens"]
        return [sample[f"keys_L{2 * TRAINED}"] for sample in samples]

    plain = keys()
    assert keys(lengths=[2 * TRAINED]) == plain
    patch_model(llama, "alibi", target_length=2 * TRAINED)
    assert keys() == plain
    assert OPTIONS["gain"] < 50
    none = evaluate(llama, tokenizer, options=OPTIONS | {"gain": 50}, **SMALL)  # control: no token gains as much
    assert {r.value for r in none.rows if r.metric in ("keys", "key_nats")} == {0.0}


@pytest.mark.slow
def test_another_model_chooses(llama, tokenizer, tmp_path) -> None:
    """The model itself under its name chooses as it does; one with other weights does not."""

    def keys(**options) -> list[float]:
        found = evaluate(llama, tokenizer, options=OPTIONS | options, **SMALL)
        return [sample[f"keys_L{TRAINED}"] for sample in found.raw["samples"]["posenc_key_tokens"]]

    for name in ("same", "other", "larger"):
        model = copy.deepcopy(llama)
        if name == "other":
            model.lm_head.weight.data = model.lm_head.weight.data.roll(1, 0)
        model.save_pretrained(tmp_path / name)
        tokens = tokenizer
        if name == "larger":
            tokens = byte_level(framed=False)
            tokens.add_tokens(["<more>"])
        tokens.save_pretrained(tmp_path / name)
    assert keys(evaluator=str(tmp_path / "same")) == keys()
    assert keys(evaluator=str(tmp_path / "other")) != keys()
    with pytest.raises(NotMeasurable, match="another vocabulary"):
        keys(evaluator=str(tmp_path / "larger"))


def test_what_cannot_be_chosen_is_refused(llama, bert, tokenizer, framed_tokenizer) -> None:
    with pytest.raises(LengthTooShort, match="lower short"):
        evaluate(llama, tokenizer, options={"short": TRAINED}, **SMALL)
    with pytest.raises(NotMeasurable, match="no next-token loss"):
        evaluate(bert, framed_tokenizer, options=OPTIONS, **SMALL)
