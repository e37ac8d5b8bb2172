"""Ways in which long-context numbers come out silently wrong: what lm-eval's own ``hf`` does, and what we do instead.

Each test shows the stock behaviour first; were it mended upstream, the test would say so.
"""

from __future__ import annotations

import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.model import CachingLM
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hf_posenc import patch_model
from hf_posenc.errors import PosEncError, RequestTooLong, UnknownOption
from hf_posenc.eval import TASKS, evaluate
from hf_posenc.eval.errors import BeyondTable, NotMeasurable, TaskOptionOutOfRange
from hf_posenc.eval.lm.causal_lm import PosEncLM

from .conftest import TRAINED, VOCABULARY, alert, framing
from .test_parity import PAIRS, requests

LONG = "The pass key is 71432. " + "The grass is green. " * 60
TEXT = "def insort(a, x):\n    lo = 0"


def scores(lm: HFLM, pairs=PAIRS) -> list[float]:
    return [score for score, _ in lm.loglikelihood(requests("loglikelihood", pairs), disable_tqdm=True)]


@pytest.fixture
def starting(tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer that puts a begin token before every text."""
    return framing(tokenizer, 1)


@pytest.fixture
def dynamic() -> LlamaForCausalLM:
    """A model whose frequencies depend on how long the text is, by transformers' own scaling."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0, eos_token_id=0, pad_token_id=1,
        rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    )  # fmt: skip
    return alert(LlamaForCausalLM(config))


def test_the_length_follows_the_patch(llama, tokenizer) -> None:  # 1
    patch_model(llama, "alibi", target_length=4 * TRAINED)
    assert PosEncLM(llama, tokenizer=tokenizer).max_length == 4 * TRAINED
    llama.config.max_position_embeddings = TRAINED  # as a scheme without an own notion of length would leave it
    assert HFLM(llama, tokenizer=tokenizer).max_length == TRAINED
    assert PosEncLM(llama, tokenizer=tokenizer).max_length == 4 * TRAINED


def test_generation_keeps_the_begin_token(llama, starting) -> None:  # 2, 3
    seen: list[list[int]] = []
    plain = llama.generate

    def spied(input_ids, **options):
        seen.append(input_ids[0].tolist())
        return plain(input_ids=input_ids, **options)

    llama.generate = spied
    asked = requests("generate_until", [(LONG, {"until": [], "max_gen_toks": 8})])
    HFLM(llama, tokenizer=starting).generate_until(asked)
    assert len(seen[0]) == TRAINED - 8
    assert seen[0][0] != starting.bos_token_id  # stock: cut, and the first token is gone
    with pytest.raises(RequestTooLong, match="generate_until"):
        PosEncLM(llama, tokenizer=starting).generate_until(asked)
    PosEncLM(llama, tokenizer=starting, max_length=2000).generate_until(asked)
    assert seen[1] == starting(LONG)["input_ids"]


def test_the_tokenizer_may_not_cut_the_question(llama, tokenizer) -> None:  # 4
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, eos_token="<end>", pad_token="<pad>"
    )
    tokenizer.model_max_length = 32
    asked = [(TEXT * 3 + question, {"until": [], "max_gen_toks": 8}) for question in ("What?", "Who?")]
    what, who = HFLM(llama, tokenizer=tokenizer, truncation=True).generate_until(requests("generate_until", asked))
    assert what == who  # stock: the end is cut, so both are the same prompt
    with pytest.raises(TaskOptionOutOfRange, match="on_overflow"):
        PosEncLM(llama, tokenizer=tokenizer, truncation=True)


def test_beyond_the_own_length_is_labelled_or_refused(llama, gpt2, tokenizer) -> None:  # 5
    stock = HFLM(llama, tokenizer=tokenizer, max_length=1000)
    assert scores(stock, [(LONG, " yes")])[0] < 0
    assert "beyond_own_length" not in stock.get_model_info()  # stock: nothing tells
    ours = PosEncLM(llama, tokenizer=tokenizer, max_length=1000)
    assert scores(ours, [(LONG, " yes")])[0] < 0
    assert {k: ours.get_model_info()[k] for k in ("own_length", "beyond_own_length")} == {
        "own_length": TRAINED, "beyond_own_length": True
    }  # fmt: skip
    with pytest.raises(IndexError):
        scores(HFLM(gpt2, tokenizer=tokenizer, max_length=1000), [(LONG, " yes")])
    with pytest.raises(BeyondTable, match=str(TRAINED)):
        scores(PosEncLM(gpt2, tokenizer=tokenizer, max_length=1000), [(LONG, " yes")])


def test_one_begin_token_in_rolling(llama, starting) -> None:  # 6
    asked = requests("loglikelihood_rolling", [(TEXT,)])
    ids = torch.tensor([starting(TEXT)["input_ids"]])
    expected = llama(ids).logits[0, :-1].double().log_softmax(-1).gather(-1, ids[0, 1:, None]).sum().item()
    stock = HFLM(llama, tokenizer=starting).loglikelihood_rolling(asked, disable_tqdm=True)
    assert stock[0] < expected - 1  # stock: a second begin token, and the first one scored
    ours = PosEncLM(llama, tokenizer=starting).loglikelihood_rolling(asked)
    assert ours == [pytest.approx(expected, rel=1e-6)]


def test_scores_do_not_depend_on_the_batch(dynamic, tokenizer) -> None:  # 7
    pairs = [(TEXT, " x"), (TEXT * 8, " x")]
    expected = []
    for context, target in pairs:  # the last token is not read, so the text is shorter by one
        ids = tokenizer(context + target)["input_ids"]
        assert len(ids) == len(tokenizer(context)["input_ids"]) + 1
        expected.append(float(dynamic(torch.tensor([ids[:-1]])).logits[0, -1].double().log_softmax(-1)[ids[-1]]))
    stock = scores(HFLM(dynamic, tokenizer=tokenizer, batch_size=2, max_length=500), pairs)
    assert stock[0] != pytest.approx(expected[0], rel=1e-3)  # stock: padded to the longer one
    ours = scores(PosEncLM(dynamic, tokenizer=tokenizer, batch_size=2, max_length=500), pairs)
    assert ours == pytest.approx(expected, rel=1e-5)


def test_scores_do_not_depend_on_earlier_requests(dynamic, tokenizer) -> None:
    """transformers' dynamic NTK keeps the frequencies of the longest text so far; a twentieth trap."""
    one, longer = [(TEXT * 4, " x")], [(TEXT * 8, " x")]
    stock, ours = (cls(dynamic, tokenizer=tokenizer, max_length=500) for cls in (HFLM, PosEncLM))
    expected = scores(ours, one)
    scores(stock, longer)
    assert scores(stock, one) != pytest.approx(expected, rel=1e-4)
    scores(ours, longer)
    assert scores(ours, one) == pytest.approx(expected, rel=1e-6)


def test_generation_does_not_depend_on_the_batch(dynamic, tokenizer) -> None:  # 7, 15
    """Prompts of unlike length apart, and nothing cached under another length."""
    prompts = [(TEXT[:-3], {"until": [], "max_gen_toks": 6}), (TEXT * 8, {"until": [], "max_gen_toks": 6})]
    expected = []
    for prompt, _ in prompts:
        ids = tokenizer(prompt)["input_ids"]
        for _ in range(6):
            ids.append(int(dynamic(torch.tensor([ids])).logits[0, -1].argmax()))
        expected.append(tokenizer.decode(ids[-6:]))
    lm = PosEncLM(dynamic, tokenizer=tokenizer, batch_size=2, max_length=500)
    assert lm.generate_until(requests("generate_until", prompts)) == expected


@pytest.mark.parametrize(
    "options", [{"dtype": "float16"}, {"device": "meta"}, {"revision": "v2"}, {"parallelize": True}]
)
def test_options_that_a_live_model_would_ignore(options: dict, llama, tokenizer) -> None:  # 12
    if "parallelize" not in options:  # that one lm-eval refuses, too
        assert HFLM(llama, tokenizer=tokenizer, **options).model.dtype == torch.float32  # stock: no effect, no word
    with pytest.raises(UnknownOption, match=next(iter(options))):
        PosEncLM(llama, tokenizer=tokenizer, **options)


def test_a_saved_scheme_is_put_on_again(llama, tokenizer, tmp_path) -> None:  # 17
    patch_model(llama, "yarn", factor=4)
    expected = scores(PosEncLM(llama, tokenizer=tokenizer))
    llama.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="hf_posenc"):  # stock: another model, and not a word, but for our guard
        HFLM(str(tmp_path), device="cpu")
    ours = PosEncLM(str(tmp_path), device="cpu")
    assert (ours.report["scheme"], ours.max_length) == ("yarn", 4 * TRAINED)
    assert scores(ours) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(PosEncError, match="alibi"):
        PosEncLM(str(tmp_path), scheme="alibi", device="cpu")


def test_limit_counts_documents_at_every_length(llama, tokenizer) -> None:
    """RULER's documents lie one length after another, so that a limit drops the longer ones."""
    options = {"lengths": [64, TRAINED], "samples": 4, "scored": 8}
    evaluation = evaluate(llama, tokenizer, tasks=["posenc_ppl", "posenc_copy"], limit=2, **options)
    assert {(r.length, r.n) for r in evaluation.rows} == {(64, 2), (TRAINED, 2)}


def asked() -> list:
    return requests("loglikelihood", PAIRS[:2])


def test_control_stock_cache_ignores_the_scheme(llama, tokenizer, tmp_path) -> None:
    """Control: what is refused below."""
    first = CachingLM(HFLM(llama, tokenizer=tokenizer), str(tmp_path / "a.db")).loglikelihood(asked())
    patch_model(llama, "alibi", target_length=TRAINED)
    assert CachingLM(HFLM(llama, tokenizer=tokenizer), str(tmp_path / "a.db")).loglikelihood(asked()) == first
    assert HFLM(llama, tokenizer=tokenizer).loglikelihood(asked()) != first


def test_a_response_cache_is_refused(llama, tokenizer, tmp_path) -> None:
    with pytest.raises(NotMeasurable, match="use_cache"):
        CachingLM(PosEncLM(llama, tokenizer=tokenizer), str(tmp_path / "answers.db"))


@pytest.mark.slow
def test_cached_requests_are_those_of_the_lengths(llama, tokenizer, tmp_path, monkeypatch) -> None:
    import lm_eval.caching.cache as cache

    monkeypatch.setattr(cache, "PATH", str(tmp_path))
    lm = PosEncLM(llama, tokenizer=tokenizer, max_length=2 * TRAINED)

    def run(length: int) -> dict:
        metadata = {"lengths": [length], "keys": 2, "depths": [0.5], "tokenizer": tokenizer}
        manager = TaskManager(include_path=str(TASKS), include_defaults=False, metadata=metadata)
        found = simple_evaluate(lm, tasks=["posenc_passkey"], task_manager=manager, cache_requests=True)
        return {len(sample["arguments"][0][0]) for sample in found["samples"]["posenc_passkey"]}

    short, long = run(TRAINED), run(2 * TRAINED)
    assert max(short) < min(long)  # stock: the short prompts again, reported under the longer length
    assert run(TRAINED) == short
