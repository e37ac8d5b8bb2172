"""Models by name: bundled models, base, then scheme, then PEFT adapter; and live ones, which stay as they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from hf_posenc import load_starter, patch_model
from hf_posenc.core import plugins
from hf_posenc.errors import CheckpointMismatch, InvalidInput, UnknownScheme
from hf_posenc.eval import compare, evaluate
from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.insight.probe import probe
from hf_posenc.schemes import registry

from ..families.tiny import tiny_encoder_decoder
from .conftest import TRAINED
from .test_parity import PAIRS, requests


@pytest.fixture
def folder(llama, tokenizer, tmp_path):
    llama.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def scores(lm: PosEncLM) -> list[float]:
    return [score for score, _ in lm.loglikelihood(requests("loglikelihood", PAIRS))]


def test_a_name_and_a_scheme_are_a_patched_model(folder, llama, tokenizer) -> None:
    named = PosEncLM(str(folder), scheme="yarn", factor=4, beta_fast=16, device="cpu")
    live = PosEncLM(patch_model(llama, "yarn", factor=4, beta_fast=16), tokenizer=tokenizer)
    assert named.max_length == 4 * TRAINED
    assert scores(named) == pytest.approx(scores(live), rel=1e-6)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_an_encoder_decoder_is_refused(family: str, tokenizer, tmp_path) -> None:
    """Its encoder would read the tokens to score."""
    model = tiny_encoder_decoder(family, vocab_size=512)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for one, its in ((model, tokenizer), (str(tmp_path / "model"), None)):
        with pytest.raises(NotMeasurable, match="is an encoder–decoder"):
            evaluate(one, its, tasks=["posenc_ppl"], lengths=[64], samples=1, scored=16)


def test_trained_copies_of_tied_weights_are_left_alone(tokenizer) -> None:
    """``hf`` ties weights when it is built, which PEFT's copies of tied embeddings do not survive."""
    peft = pytest.importorskip("peft")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=TRAINED, tie_word_embeddings=True,
    )  # fmt: skip
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)
    tuned = peft.get_peft_model(LlamaForCausalLM(config), lora)
    ids = torch.arange(20)[None]
    before = tuned.eval()(input_ids=ids).logits
    assert min(scores(PosEncLM(tuned, tokenizer=tokenizer))) < 0
    assert torch.equal(tuned(input_ids=ids).logits, before)
    assert "tie_weights" not in vars(tuned)


@pytest.mark.parametrize("measure", ["evaluate", "compare", "probe"])
def test_a_live_model_keeps_the_mode_of_every_module(measure: str, llama, tokenizer, tmp_path: Path) -> None:
    """It may be measured in the middle of its training, a part of it frozen in evaluation mode."""
    llama.train()
    llama.model.layers[0].eval()
    modes = [module.training for module in llama.modules()]
    few: dict[str, Any] = {"tasks": ["posenc_ppl"], "lengths": [TRAINED], "samples": 1, "scored": 8}
    if measure == "evaluate":
        evaluate(llama, tokenizer, **few)
    elif measure == "compare":
        compare(llama, "pi", tokenizer=tokenizer, out=tmp_path, **few)
    else:
        probe(llama, tokenizer, samples=1, rows=1)
    assert [module.training for module in llama.modules()] == modes
    assert len(set(modes)) == 2


def test_a_checkpoint_without_a_head_is_refused(llama, tokenizer, tmp_path) -> None:
    """Its head would be random: a classifier is no language model."""
    config = llama.config.to_dict() | {"tie_word_embeddings": False, "num_labels": 2}
    LlamaForSequenceClassification(LlamaConfig(**config)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointMismatch, match=r"lacks 'lm_head\.weight'"):
        PosEncLM(str(tmp_path), device="cpu")


@pytest.mark.parametrize("left", [None, "{nope"], ids=["missing", "damaged"])
def test_a_tokenizer_that_cannot_be_read_is_named_with_its_folder(folder, left: str | None) -> None:
    """Without any file, transformers 5.4 makes one that knows no word, which is refused as such."""
    file = folder / "tokenizer.json"
    file.unlink()
    if left is None:
        (folder / "tokenizer_config.json").unlink()
    else:
        file.write_text(left)
    with pytest.raises((CheckpointMismatch, InvalidInput), match=f"The tokenizer of '{folder}|unknown token"):
        evaluate(str(folder), lengths=[64], tasks=["posenc_ppl"])


FEW: dict[str, Any] = {"tasks": ["posenc_ppl"], "lengths": [128], "samples": 2, "scored": 16}


def loss(evaluation: Any) -> float:
    return next(row.value for row in evaluation.rows if row.metric == "nll")


@pytest.mark.slow
def test_a_scheme_of_a_file_is_known_to_a_model_type_of_lm_eval(tmp_path: Path, monkeypatch) -> None:
    """As ``--model_args`` writes it."""
    (tmp_path / "scheme_in_a_file.py").write_text(
        "from hf_posenc.extend import register_scheme\nfrom hf_posenc.schemes.bias.alibi import ALiBi\n"
        "@register_scheme('alibi_of_a_file')\nclass OfAFile(ALiBi): pass\n"
    )
    for owner, name in ((registry, "_SCHEMES"), (registry, "_CLASSES"), (plugins, "_IMPORTED")):
        monkeypatch.setattr(owner, name, dict(getattr(owner, name)))
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = "pretrained=starter:llama,scheme=alibi_of_a_file"
    with pytest.raises(UnknownScheme, match="alibi_of_a_file"):
        PosEncLM.create_from_arg_string(words)
    own = PosEncLM.create_from_arg_string(f"{words},import_file={tmp_path / 'scheme_in_a_file.py'}")
    assert loss(evaluate(own, **FEW)) == loss(evaluate("starter:llama", scheme="alibi", **FEW))


@pytest.mark.slow
def test_an_adapter_is_named_and_its_base_found_or_given(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="comparisons draw plots, with the extra `plot`")
    peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")
    model, tokenizer = load_starter("llama")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    tuned = peft.get_peft_model(patch_model(model, "yarn", factor=4), config)
    tuned.save_pretrained(tmp_path / "tuned")  # without a tokenizer: that of the base is taken
    want = loss(evaluate(tuned, tokenizer, **FEW))
    assert loss(evaluate(tmp_path / "tuned", **FEW)) == pytest.approx(want, rel=1e-5)
    assert loss(evaluate("starter:llama", peft=str(tmp_path / "tuned"), **FEW)) == pytest.approx(want, rel=1e-5)
    assert loss(evaluate("starter:llama", scheme="yarn", factor=4, **FEW)) != pytest.approx(want, rel=1e-3)
    compared = compare(tmp_path / "tuned", "unpatched,rerope", out=tmp_path / "out", **FEW)
    assert compared.about["model"] == str(tmp_path / "tuned")
    assert compared.labels == ["yarn (as saved)", "rerope"]
    assert loss(compared) == pytest.approx(want, rel=1e-5)
