"""lm-eval's RULER tasks, end to end and offline."""

from __future__ import annotations

import random
from typing import ClassVar

import pytest

from hf_posenc.errors import MissingPackage
from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import LengthTooShort, TaskDataMissing
from hf_posenc.eval.ruler import GROUPS, check_ruler, ruler_tasks, seeded, tokenizer_folder
from hf_posenc.eval.ruler_results import first_of_each_length, ruler_documents, ruler_rows

pytest.importorskip("wonderwords", reason="RULER's tasks need it: pip install 'hf-posenc[ruler]'")
pytest.importorskip("nltk", reason="RULER's tasks need it: pip install 'hf-posenc[ruler]'")


@pytest.mark.slow
def test_the_limit_counts_at_every_length_and_requests_are_whole(llama, tokenizer) -> None:
    out = evaluate(llama, tokenizer, tasks=["niah_single_1"], lengths=[600, 700], limit=2, log_samples=True)
    assert [(row.length, row.n, row.metric) for row in out.rows] == [(600, 2, "match"), (700, 2, "match")]
    assert out.raw["config"]["max_length"] >= 600
    for sample in out.raw["samples"]["niah_single_1"]:
        prompt = sample["arguments"][0][0]
        assert sample["doc"]["outputs"][0] in prompt
        assert prompt.endswith("mentioned in the provided text is")
        assert len(tokenizer(sample["doc"]["input"])["input_ids"]) + 128 <= sample["doc"]["max_length"]
    (config,) = out.raw["configs"].values()
    assert "/tmp" not in str(config["metadata"]["tokenizer"])  # the folder it was loaded from is gone


def test_drawing_prompts_leaves_the_generators_alone() -> None:
    states = random.getstate()
    with seeded(0):
        first = random.random()
    assert random.getstate() == states
    with seeded(0):
        assert random.random() == first


def test_the_same_seed_gives_the_same_prompts(llama, tokenizer) -> None:
    asked = {"tasks": ["niah_multikey_2"], "lengths": [600], "limit": 1, "log_samples": True}
    first, again = (
        evaluate(llama, tokenizer, **asked).raw["samples"]["niah_multikey_2"][0]["doc"]["input"] for _ in range(2)
    )
    assert first == again


def test_prompts_that_never_fit_are_refused(tokenizer) -> None:
    for task in ("ruler_cwe", "ruler_fwe", "ruler_vt"):
        with pytest.raises(LengthTooShort, match=r"tokens with this tokenizer"):
            check_ruler([task], tokenizer, [150])
    check_ruler(["ruler_fwe"], tokenizer, [4096])
    check_ruler(["posenc_ppl"], tokenizer, [1])


def test_data_of_the_network_is_named_at_once(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(TaskDataMissing, match="downloaded at every run"):
        check_ruler(["ruler_qa_squad"], tokenizer, [4096])
    with pytest.raises(TaskDataMissing, match=r"punkt_tab|paul_graham_essays"):
        check_ruler(["niah_single_2"], tokenizer, [4096])


def test_a_missing_package_names_the_extra(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "wonderwords", None)
    with pytest.raises(MissingPackage, match=r"pip install 'hf-posenc\[ruler\]'"):
        check_ruler(["niah_single_1"], tokenizer, [4096])


def test_a_group_is_all_of_its_tasks() -> None:
    from lm_eval.tasks import TaskManager

    folder = __import__("lm_eval.tasks", fromlist=["tasks"]).__path__[0] + "/ruler"
    known = TaskManager(include_path=folder, include_defaults=False).all_subtasks
    assert set(ruler_tasks(GROUPS)) == set(known)


def test_the_tokenizer_is_saved_without_remote_code(tokenizer) -> None:
    from transformers import AutoTokenizer

    tokenizer.init_kwargs["auto_map"] = {"AutoTokenizer": ["somebody/evil--tok.Tok", None]}
    try:
        with tokenizer_folder(tokenizer) as folder:
            loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    finally:
        del tokenizer.init_kwargs["auto_map"]
    assert loaded("The pass key is 71.")["input_ids"] == tokenizer("The pass key is 71.")["input_ids"]


def test_rows_leave_out_lengths_that_were_not_measured() -> None:
    samples = [
        {"doc_id": number, "doc": {"max_length": length}, "4096": -1.0, str(length): score}
        for number, (length, score) in enumerate([(512, 1.0), (512, 0.0), (4096, 1.0)])
    ]
    documents = ruler_documents({"niah_single_1": samples}, ["niah_single_1"])
    assert [(one.document, one.length) for one in documents] == [("0", 512), ("1", 512), ("2", 4096)]
    rows = ruler_rows(documents, "yarn", "model")
    assert [(row.length, row.value, row.n) for row in rows] == [(512, 0.5, 2), (4096, 1.0, 1)]
    assert rows[0].stderr == pytest.approx(0.5)
    assert rows[1].stderr is None


def test_documents_are_chosen_at_every_length() -> None:
    class Task:
        eval_docs: ClassVar[dict[str, list[int]]] = {"max_length": [512, 512, 512, 1024, 1024]}

    assert first_of_each_length(Task(), 2) == [0, 1, 3, 4]
