"""Where this package writes into a folder with a tokenizer, that cuts texts at the target length."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_posenc import export, from_pretrained, load_starter, patch_model
from hf_posenc.checkpoints.merge import merge
from hf_posenc.checkpoints.tokenizer import load_tokenizer
from hf_posenc.cli import main
from hf_posenc.errors import LimitKept

peft = pytest.importorskip("peft", reason="adapters need the extra `train`")
TRAINED, FACTOR = 256, 4
SENTENCES = "sentence_bert_config.json"
TEXTS = [f"{'the dog chased another dog. ' * 40}{end}" for end in ("the first end", "the other end")]


def stated(folder: Path) -> tuple[Any, Any]:
    """The limits in the files of a folder: the tokenizer's, and that of the library it is made with."""
    config, whole = (json.loads((folder / name).read_text()) for name in ("tokenizer_config.json", "tokenizer.json"))
    return config["model_max_length"], (whole["truncation"] or {}).get("max_length")


def reads_both_ends(folder: Path) -> bool:
    """Whether stock transformers tells two long texts apart that differ at their ends."""
    one, other = AutoTokenizer.from_pretrained(folder)(TEXTS, truncation=True).input_ids
    return one != other


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model whose tokenizer ends at the trained length, in all places that can say so."""
    return base_of(tmp_path / "base", TRAINED)


def base_of(folder: Path, limit: int) -> Path:
    model, tokenizer = load_starter("llama")
    assert model.config.max_position_embeddings == TRAINED
    tokenizer.model_max_length = limit
    tokenizer.backend_tokenizer.enable_truncation(limit)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert stated(folder) == (limit, limit)
    return folder


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code in (0, None)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_run_and_its_checkpoints(base: Path, tmp_path: Path, method: str) -> None:
    out = tmp_path / "run"
    words = ["-s", "yarn", "-f", str(FACTOR), "--steps", "1", "--set", "length=64", "--set", "eval_lengths=64"]
    run("finetune", "-m", str(base), *words, "--method", method, "--out", str(out))
    assert not reads_both_ends(base), "control"
    for folder in (out, out / "checkpoint-1"):
        assert stated(folder)[0] == FACTOR * TRAINED, folder
        assert stated(folder)[1] in (None, FACTOR * TRAINED), folder  # training may have switched it off
        assert reads_both_ends(folder), folder


def test_an_adapter_is_merged_and_exported_in_python(base: Path, tmp_path: Path) -> None:
    model = from_pretrained(base, scheme="yarn", factor=FACTOR)
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(model, adapter).save_pretrained(tmp_path / "adapter")
    merge(tmp_path / "adapter", tmp_path / "merged")
    export(tmp_path / "adapter", tmp_path / "plain")
    for name in ("merged", "plain"):
        assert stated(tmp_path / name) == (FACTOR * TRAINED,) * 2
    assert f"set that to {FACTOR * TRAINED} or more" in (tmp_path / "adapter" / "README.md").read_text()


def test_an_adapter_that_is_saved_where_a_tokenizer_is(base: Path) -> None:
    model = patch_model(load_starter("llama")[0], "yarn", factor=FACTOR)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    wrapped.save_pretrained(base)
    assert stated(base) == (FACTOR * TRAINED,) * 2


@pytest.mark.parametrize("write", ["save", "export"])
def test_a_model_that_is_saved_where_a_tokenizer_is(base: Path, write: str) -> None:
    """And a limit of sentence-transformers, whose other entries stay."""
    (base / SENTENCES).write_text(json.dumps({"max_seq_length": TRAINED, "do_lower_case": True}))
    before = json.loads((base / "tokenizer.json").read_text())
    model = patch_model(load_starter("llama")[0], "yarn", factor=FACTOR)
    if write == "save":
        model.save_pretrained(base)
        assert f"set that to {FACTOR * TRAINED} or more" in (base / "README.md").read_text()
    else:
        export(model, base)
    assert stated(base) == (FACTOR * TRAINED,) * 2
    assert reads_both_ends(base)
    assert json.loads((base / SENTENCES).read_text()) == {"max_seq_length": FACTOR * TRAINED, "do_lower_case": True}
    before["truncation"]["max_length"] = FACTOR * TRAINED
    assert json.loads((base / "tokenizer.json").read_text()) == before


def test_a_model_that_saves_its_own_tokenizer_keeps_it(base: Path) -> None:
    """As a `SentenceTransformer` does: what lies there is not put over it."""

    class Whole(nn.Module):
        def save_pretrained(self, folder: str) -> None:
            tokenizer.save_pretrained(folder)

    model, tokenizer = load_starter("llama")
    whole = Whole()
    whole.inside, whole.tokenizer = model, tokenizer
    patch_model(whole, "yarn", factor=FACTOR)
    whole.config = model.config
    assert tokenizer.add_tokens(["<new>"]) == 1
    whole.save_pretrained(base)
    assert "<new>" in AutoTokenizer.from_pretrained(base).get_vocab()


@pytest.mark.parametrize(("scheme", "limit"), [("yarn", FACTOR * TRAINED), ("alibi", 10**30)])
def test_a_tokenizer_that_states_no_limit_gets_the_one_of_the_model(scheme: str, limit: int, tmp_path: Path) -> None:
    """Not where the model reads no longer texts than before."""
    model, tokenizer = load_starter("llama")
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length >= 10**29, "control"
    patch_model(model, scheme, factor=FACTOR if scheme == "yarn" else None).save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == pytest.approx(limit)


@pytest.mark.parametrize("limit", [TRAINED, 10**30])
@pytest.mark.parametrize("code", [None, "bundle"])
def test_a_tokenizer_that_was_saved_last_is_loaded_with_the_new_limit(base: Path, limit: int, code: str | None) -> None:
    """By this package; what transformers reads is said in the card, and moved where the model is saved last."""
    model, tokenizer = load_starter("llama")
    tokenizer.model_max_length = limit
    patch_model(model, "yarn", factor=FACTOR).save_pretrained(base, code=code)
    tokenizer.save_pretrained(base)
    assert stated(base)[0] == limit, "control"
    assert load_tokenizer(str(base)).model_max_length == FACTOR * TRAINED
    assert f"set that to {FACTOR * TRAINED} or more" in (base / "README.md").read_text()
    model.save_pretrained(base, code=code)
    assert AutoTokenizer.from_pretrained(base).model_max_length == FACTOR * TRAINED


@pytest.mark.slow
def test_a_bundle_says_that_its_tokenizer_was_saved_last(base: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "code"))
    tokenizer = AutoTokenizer.from_pretrained(base)
    patch_model(load_starter("llama")[0], "yarn", factor=FACTOR).save_pretrained(base, code="bundle")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoModelForCausalLM.from_pretrained(base, trust_remote_code=True)  # a control: saved in the other order
    tokenizer.save_pretrained(base)
    with pytest.warns(Warning, match=f"model_max_length = {FACTOR * TRAINED}"):
        AutoModelForCausalLM.from_pretrained(base, trust_remote_code=True)


@pytest.mark.parametrize("limit", [TRAINED - 1, 2 * FACTOR * TRAINED])
def test_other_limits_stay(limit: int, tmp_path: Path) -> None:
    """One below the trained length was chosen, and is said; one beyond the target cuts nothing."""
    base = base_of(tmp_path / "base", limit)
    if limit < TRAINED:
        with pytest.warns(LimitKept) as said:
            from_pretrained(base, scheme="yarn", factor=FACTOR).save_pretrained(base)
        wanted = ("model_max_length in tokenizer_config.json is 255", "truncation.max_length in tokenizer.json is 255")
        assert sorted(str(one.message).partition(", below the trained length of 256")[0] for one in said) == [*wanted]
    else:
        from_pretrained(base, scheme="yarn", factor=FACTOR).save_pretrained(base)
    assert stated(base) == (limit, limit)
