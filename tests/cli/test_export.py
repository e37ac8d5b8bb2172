"""``hf-posenc export`` writes what plain transformers reads, and names where the two differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_posenc import load_starter, patch_model


def test_a_plain_checkpoint_with_its_tokenizer(call: Callable, tmp_path: Path) -> None:
    words = ["export", "-m", "starter:llama", "-s", "yarn", "-f", "4", "-o", "beta_fast=16", "--out", str(tmp_path)]
    answer = call(*words, "--json")
    assert answer.code == 0, answer.err
    assert answer.data["rope_parameters"]["beta_fast"] == 16.0
    assert answer.data["warnings"] == []
    model, tokenizer = load_starter("llama")
    patch_model(model, "yarn", factor=4, beta_fast=16.0)
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path)("The dog chased another dog. " * 60).input_ids])
    assert ids.tolist()[0] == tokenizer("The dog chased another dog. " * 60).input_ids
    with torch.no_grad():
        apart = AutoModelForCausalLM.from_pretrained(tmp_path).eval()(ids).logits - model(ids).logits
    assert apart.abs().max() < 1e-3  # frequencies are float32 there, float64 here; logits are up to 20
    assert call(*words).code == 2  # the folder is not empty any more


def test_what_is_the_same_for_short_texts_only_and_what_is_refused(call: Callable, tmp_path: Path) -> None:
    words = ("export", "-m", "starter:llama", "-f", "4", "--out")
    answer = call(*words, str(tmp_path / "long"), "-s", "longrope")
    assert answer.code == 0, answer.err
    assert "Warning: In texts longer than 256 tokens" in answer.out
    assert json.loads((tmp_path / "long" / "config.json").read_text())["rope_parameters"]["rope_type"] == "longrope"
    refused = call(*words, str(tmp_path / "alibi"), "-s", "alibi")
    assert refused.code == 1
    assert "take this checkpoint as it is" in refused.err
    refused = call("export", "-m", "starter:llama", "--out", str(tmp_path / "alibi"))
    assert refused.code == 2
    assert "Pass one with --scheme" in refused.err
    assert not (tmp_path / "alibi").exists()
