"""What cannot take effect is refused; any model object of lm-eval can be measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from hf_posenc import patch_model
from hf_posenc.errors import BadComparison, RequestTooLong, UnknownOption, WrongKind
from hf_posenc.eval import TASKS, evaluate
from hf_posenc.eval.catalogue import explained_task_errors
from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.tasks import base
from hf_posenc.starters.loading import starter_path

SCORED = """
task: made_up
dataset_path: json
dataset_kwargs: {data_files: DATA}
output_type: loglikelihood
test_split: train
fewshot_split: train
num_fewshot: 1
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""


def task_folder(tmp_path: Path) -> Path:
    """A folder with a task that scores its answers, after an example."""
    rows = "".join(f'{{"question": "What is {n}?", "answer": "number {n}"}}\n' for n in range(6))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "made_up.yaml").write_text(SCORED.replace("DATA", str(tmp_path / "rows.jsonl")))
    return tmp_path


def test_numbers_are_those_of_stock_lm_eval(llama, tokenizer, tmp_path: Path) -> None:
    folder = task_folder(tmp_path)
    asked = {"include_path": folder, "trust_tasks": True, "log_samples": True}
    ours = evaluate(llama, tokenizer, tasks=["made_up"], lengths=[512], **asked).raw["samples"]["made_up"]
    theirs = HFLM(pretrained=llama, tokenizer=tokenizer, max_length=512, softmax_dtype="float32")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    stock = simple_evaluate(theirs, tasks=["made_up"], fewshot_random_seed=0, task_manager=manager)
    expected = [sample["resps"][0][0][0] for sample in stock["samples"]["made_up"]]
    assert [sample["resps"][0][0][0] for sample in ours] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"options": {"num_fewshot": 2}}, UnknownOption, "lm-eval's own command"),
        ({"num_fewshot": 2}, UnknownOption, "has no effect on this model"),
        ({"options": {"lenghts": [64]}}, UnknownOption, "Did you mean 'lengths'"),
        ({"options": "{}"}, WrongKind, "'{}'"),
    ],
)
def test_what_cannot_take_effect_is_refused(llama, tokenizer, options, error, told: str) -> None:
    with pytest.raises(error, match=told):
        evaluate(llama, tokenizer, tasks=["posenc_passkey"], lengths=[128], keys=1, **options)


def test_our_own_tasks_take_no_examples(llama, tokenizer) -> None:
    manager = TaskManager(
        include_path=str(TASKS), include_defaults=False, metadata={"lengths": [128], "tokenizer": tokenizer}
    )
    theirs = HFLM(pretrained=llama, tokenizer=tokenizer)
    with pytest.raises(NotMeasurable, match="num_fewshot has no effect"):
        simple_evaluate(theirs, tasks=["posenc_passkey"], num_fewshot=2, task_manager=manager)


def test_a_model_object_of_lm_eval_gives_the_same_numbers(llama, tokenizer) -> None:
    asked = {"tasks": ["posenc_ppl", "posenc_passkey"], "lengths": [96, 128], "samples": 3, "keys": 1}
    theirs = evaluate(HFLM(pretrained=llama, tokenizer=tokenizer, softmax_dtype="float32"), **asked)
    ours = evaluate(llama, tokenizer, **asked)
    assert [row.value for row in theirs.rows] == pytest.approx([row.value for row in ours.rows], abs=1e-4)
    assert {row.scheme for row in theirs.rows} == {"unpatched"}


def test_a_model_object_is_not_cut_or_changed_in_silence(llama, tokenizer) -> None:
    theirs = HFLM(pretrained=llama, tokenizer=tokenizer)
    with pytest.raises(RequestTooLong, match="cuts requests to its max_length of 128"):
        evaluate(theirs, tasks=["posenc_ppl"], lengths=[256])
    with pytest.raises(UnknownOption, match="scheme='yarn' has no effect on this HFLM"):
        evaluate(theirs, tasks=["posenc_ppl"], scheme="yarn", factor=2)
    with pytest.raises(UnknownOption, match=r"tokenizer=.* has no effect on this HFLM"):
        evaluate(theirs, tokenizer, tasks=["posenc_ppl"])
    with pytest.raises(NotMeasurable, match="suffix_scores, which HFLM does not support"):
        evaluate(theirs, tasks=["posenc_copy"], lengths=[128])
    patch_model(llama, "yarn", factor=2)
    rows = evaluate(theirs, tasks=["posenc_passkey"], lengths=[128], keys=1).rows
    assert {row.scheme for row in rows} == {"yarn"}


def test_what_keeps_a_task_from_loading_is_named() -> None:
    for error in (ModuleNotFoundError("no_such_package"), ConnectionError("a/b"), KeyError("dataset_path")):
        with pytest.raises(BadComparison, match=type(error).__name__), explained_task_errors(["theirs"]):
            raise error


def test_a_task_loads_its_tokenizer_with_the_options_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(base, "named_tokenizer", lambda named: asked.append((named.model, dict(named.hub))))
    folder = str(starter_path("llama"))
    options = {"revision": "v1", "token": "secret", "lengths": [64]}
    base.tokenizer_of({"pretrained": folder, **options})
    base.tokenizer_of({"pretrained": "owner/other", "tokenizer": folder, **options})
    assert asked == [(folder, {"revision": "v1", "token": "secret"}), (folder, {"token": "secret"})]
