"""The retrieval tasks through lm-eval: prompts that fit, scores that are those of the answers given."""

from __future__ import annotations

import re

import lm_eval
import pytest
import torch
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_posenc import list_schemes
from hf_posenc.checkpoints.load import option_names
from hf_posenc.eval import TASKS
from hf_posenc.eval.errors import LengthTooShort, TaskOptionOutOfRange, TokenizerTooPoor
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.lm.masked_lm import PosEncMLM
from hf_posenc.eval.results.rows import rows_of
from hf_posenc.eval.tasks.sweep import Sweep

from .prompt_solver import Reader

DEEP = ("posenc_niah_single", "posenc_niah_multikey", "posenc_niah_multivalue", "posenc_niah_multiquery", "posenc_qa")
FLAT = ("posenc_vt", "posenc_cwe", "posenc_fwe")
RETRIEVAL = DEEP + FLAT
LENGTHS = [900, 1400]
DEPTHS = [0.0, 0.5, 1.0]
SMALL = {"lengths": LENGTHS, "depths": DEPTHS, "keys": 2}


def bytes_only(*, start: bool = False, end: bool = False) -> PreTrainedTokenizerFast:
    """One token a byte, 256 in all and two special ones; with a token before every text, or after it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(["<s>", "</s>", *alphabet])}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    if start or end:
        bpe.post_processor = processors.TemplateProcessing(
            single=f"{'<s> ' * start}$A{' </s>' * end}", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>")


def few_words() -> PreTrainedTokenizerFast:
    """Knows three words, and all others as one unknown one."""
    words = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "code": 2, "is": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


def task_of(name: str, tokenizer, **metadata):
    manager = TaskManager(
        include_path=str(TASKS), include_defaults=False, metadata={"tokenizer": tokenizer, **metadata}
    )
    return manager.load(name)["tasks"][name]


def run(lm, names, tokenizer, limit=None, bootstrap_iters=0, **metadata):
    metadata = {**SMALL, "tokenizer": tokenizer, **metadata}
    loaded = TaskManager(include_path=str(TASKS), include_defaults=False, metadata=metadata).load(list(names))
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(seed=0)
        task.set_config(key="num_fewshot", value=0)
    return lm_eval.evaluate(lm=lm, task_dict=loaded, log_samples=True, limit=limit, bootstrap_iters=bootstrap_iters)


def size(tokenizer, text: str) -> int:
    return len(tokenizer(text)["input_ids"])


@pytest.mark.parametrize("scoring", ["forced", "generate"])
@pytest.mark.parametrize("name", ["posenc_niah_multivalue", "posenc_qa", "posenc_cwe", "posenc_fwe"])
@pytest.mark.parametrize("kind", ["framed bpe", "bytes with both"])
def test_no_prompt_exceeds_its_length(framed_tokenizer, name: str, kind: str, scoring: str) -> None:
    """At lengths that are not round, from the shortest possible one on; one token less is refused."""
    tokenizer = {
        "framed bpe": framed_tokenizer, "bytes with both": bytes_only(start=True, end=True),
    }[kind]  # fmt: skip
    options = {"keys": 1, "depths": [0.3], "scoring": scoring}
    with pytest.raises(LengthTooShort, match=name) as refusal:
        task_of(name, tokenizer, lengths=[5], **options)
    least = int(re.search(r"at least (\d+) tokens", str(refusal.value))[1])
    with pytest.raises(LengthTooShort):
        task_of(name, tokenizer, lengths=[least - 1], **options)
    lengths = [least, least + 1, least + 37, 2 * least + 3, 2503 + least]
    task = task_of(name, tokenizer, lengths=lengths, **options)
    task.build_all_requests()
    (doc,) = task.dataset["test"]
    each = len(task.instances) // len(lengths)
    assert each == (1 if scoring == "generate" else len(doc["answers"]))
    for index, length in enumerate(lengths):
        requests = [instance.args for instance in task.instances[index * each : (index + 1) * each]]
        if scoring == "generate":
            used = [size(tokenizer, prompt) + options["max_gen_toks"] for prompt, options in requests]
        else:
            used = [size(tokenizer, context + target) for context, target in requests]
        assert max(used) <= length
        slack = {"posenc_qa": 130, "posenc_fwe": 60}.get(name, 80)  # bytes of the longest unit of filler
        assert length - max(used) < slack


@pytest.mark.parametrize("scoring", ["forced", "generate"])
@pytest.mark.parametrize("right", [True, False])
def test_a_perfect_model_scores_one_and_a_wrong_one_zero(tokenizer, scoring: str, right: bool) -> None:
    out = run(Reader(right=right), RETRIEVAL, tokenizer, scoring=scoring)
    hits = {"acc", "match", "part"}
    expected_metrics = {"acc", "nll"} if scoring == "forced" else {"match", "part"}
    for name in RETRIEVAL:
        rows = rows_of({**out, "results": {name: out["results"][name]}}, scheme="none", model="reader")
        assert {row.metric for row in rows} == expected_metrics
        assert {row.value for row in rows if row.metric in hits} == {float(right)}
        assert {(row.length, row.depth) for row in rows if row.metric in {"acc", "match"}} == {
            (length, depth) for length in LENGTHS for depth in (None, *(DEPTHS if name in DEEP else ()))
        }
        assert {row.n for row in rows} == {2}


def test_partial_answers_score_their_share(tokenizer) -> None:
    """A model that leaves out the second answer of every list."""

    class Forgetful(Reader):
        def next(self, context: str) -> str:
            answer = super().next(context)
            return answer[::-1] if context[-1] == "," and context.count(",", context.rfind(" are")) == 1 else answer

    forgetful = run(Forgetful(right=True), ["posenc_niah_multivalue"], tokenizer, depths=[0.0, 1.0], codes=3)
    results = forgetful["results"]["posenc_niah_multivalue"]
    assert results["acc_L900,none"] == pytest.approx(2 / 3)
    assert results["acc_L900_D0,none"] == 1.0  # the first answer is always given
    assert results["acc_L900_D100,none"] == 1.0  # the last


@pytest.mark.slow
@pytest.mark.parametrize("name", ["posenc_niah_multivalue", "posenc_vt"])
def test_scores_are_those_of_the_logged_samples(llama, tokenizer, name: str) -> None:
    """Recomputed from the logged texts by a plain forward of the plain model."""
    out = run(PosEncLM(llama, tokenizer=tokenizer, max_length=LENGTHS[-1]), [name], tokenizer)
    depths = DEPTHS if name in DEEP else [None]
    cells = [(length, depth) for length in LENGTHS for depth in depths]
    losses: dict = {}
    hits: dict = {}
    for sample in out["samples"][name]:
        answers, arguments = sample["doc"]["answers"], iter(sample["arguments"])
        for number, cell in enumerate(cells):
            given = [next(arguments) for _ in answers]
            for index, (context, target) in enumerate(given):
                assert context == given[0][0] + "".join(f" {done}," for done in answers[:index])
                before, whole = (torch.tensor(tokenizer(text)["input_ids"]) for text in (context, context + target))
                logits = llama(whole[None]).logits[0, len(before) - 1 : -1].double()
                wanted = whole[len(before) :]
                loss = torch.nn.functional.cross_entropy(logits, wanted).item()
                hit = float((logits.argmax(-1) == wanted).all())
                losses.setdefault(cell[0], []).append(loss)
                hits.setdefault(cell[0], []).append(hit)
                if index == sample["doc"]["pinned"][number] and cell[1] is not None:
                    losses.setdefault(cell, []).append(loss)
    for row in rows_of({**out, "results": {name: out["results"][name]}}, scheme="none", model="llama"):
        cell = row.length if row.depth is None else (row.length, row.depth)
        if row.metric == "nll":
            assert row.value == pytest.approx(sum(losses[cell]) / len(losses[cell]), rel=1e-5)
        elif row.depth is None:
            assert row.value == pytest.approx(sum(hits[cell]) / len(hits[cell]))


def test_masked_models_get_the_same_documents(bert, framed_tokenizer) -> None:
    """The answer masked, between the special tokens, which have their room too."""
    lm = PosEncMLM(bert, tokenizer=framed_tokenizer, max_length=250)
    out = run(lm, ["posenc_niah_single"], framed_tokenizer, lengths=[250], depths=[0.0, 1.0])
    for sample in out["samples"]["posenc_niah_single"]:
        for (context, target), loss in zip(sample["arguments"], ("nll_L250_D0", "nll_L250_D100"), strict=True):
            whole, before = framed_tokenizer(context + target)["input_ids"], framed_tokenizer(context)["input_ids"]
            positions = torch.arange(len(before) - 1, len(whole) - 1)
            ids = torch.tensor(whole)
            masked = ids.clone()
            masked[positions] = framed_tokenizer.mask_token_id
            scores = bert(masked[None]).logits[0, positions].double().log_softmax(-1).gather(-1, ids[positions, None])
            assert sample[loss] == pytest.approx(-scores.mean().item(), rel=1e-4)


@pytest.mark.parametrize("name", ["posenc_niah_multiquery", "posenc_vt", "posenc_fwe"])
def test_prompts_come_from_the_seed_alone(tokenizer, name: str) -> None:
    first, again, other = (task_of(name, tokenizer, **SMALL, seed=seed).dataset["test"].to_list() for seed in (0, 0, 1))
    assert first == again
    assert not {doc["target"] for doc in first} & {doc["target"] for doc in other}
    assert first[0]["target"] != first[1]["target"]
    alone = task_of(name, tokenizer, **{**SMALL, "lengths": LENGTHS[1:], "keys": 1}).dataset["test"][0]
    assert alone["target"] == first[0]["target"]
    assert alone["prompts"] == first[0]["prompts"][len(first[0]["prompts"]) // 2 :]  # whatever else is asked for


def test_a_tokenizer_without_tokens_for_the_answers_is_refused() -> None:
    """Every answer would be the one unknown token, and every guess of it right."""
    with pytest.raises(TokenizerTooPoor):
        task_of("posenc_vt", few_words(), lengths=[400], keys=1)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("posenc_niah_single", {"haystack": "essays"}, "haystack"),
        ("posenc_niah_multivalue", {"codes": 1}, "codes"),
        ("posenc_vt", {"hops": 0.5}, "hops"),
        ("posenc_cwe", {"often": 3, "rarely": 3}, "often"),
        ("posenc_fwe", {"zipf": "steep"}, "zipf"),
    ],
    ids=str,
)
def test_bad_options_are_refused(tokenizer, name: str, option: dict, message: str) -> None:
    with pytest.raises(TaskOptionOutOfRange, match=message):
        task_of(name, tokenizer, **SMALL, **option)


@pytest.mark.slow
def test_no_option_is_called_like_one_of_a_scheme(tokenizer) -> None:
    """lm-eval puts model arguments among a task's options: ``scheme=norm01,alpha=…`` must not reach a task."""
    read = set().union(*(type(task_of(name, tokenizer, **SMALL).options).model_fields for name in RETRIEVAL))
    assert {"haystack", "hops", "often", "zipf", "qa_hops", "codes"} <= read
    assert not read & set().union(*(option_names(scheme.name) for scheme in list_schemes()))
    assert not read & set(Sweep.model_fields)
