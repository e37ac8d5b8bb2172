"""``hf-posenc finetune`` → ``merge`` → ``export``: commands that are printed work as they are printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_posenc import describe, from_pretrained, load_starter, patch_model

from .conftest import Call

SHORT = ("--steps", "2", "--set", "length=128", "--set", "eval_lengths=64")
TEXT = "The dog chased another dog. " * 60


def printed(text: str) -> list[list[str]]:
    """The commands after ``Next:``, as words."""
    _, found, lines = text.partition("Next:\n")
    assert found, text
    return [shlex.split(line) for line in lines.splitlines() if line.startswith("  ")]


@pytest.mark.slow
def test_from_fine_tune_to_plain_transformers(
    call: Call, small_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
    monkeypatch.chdir(tmp_path)
    answer = call("finetune", "-m", str(small_llama), "-s", "yarn", "-f", "2", "--out", "a run", *SHORT)
    assert answer.code == 0, answer.err
    left, seen = printed(answer.out), []
    while left:
        _, *words = left.pop(0)
        answer = call(*words)
        assert answer.code == 0, answer.err
        seen.append(words[0])
        left += printed(answer.out) if "Next:" in answer.out else []
    assert seen == ["eval", "merge"]
    assert call("export", "-m", "a run-merged", "--out", "a run-merged-plain").code == 0
    assert describe(from_pretrained("a run-merged")).scheme == "yarn"
    written = AutoModelForCausalLM.from_pretrained("a run-merged-plain").config
    assert written.rope_parameters["rope_type"] == "yarn"


def test_an_adapter_is_found_by_its_base_merged_and_exported(call: Call, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="adapters need the extra `train`")
    from peft import get_peft_model

    model, tokenizer = load_starter("llama")
    model.save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype="float32")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    tuned = tmp_path / "tuned"
    get_peft_model(patch_model(base, "yarn", factor=4), config).save_pretrained(tuned)
    tokenizer.save_pretrained(tuned)
    words = ("-m", str(tuned), "--out", str(tmp_path / "plain"), "--dtype", "float32")
    assert call("finetune", "-m", str(tuned), "--out", str(tmp_path / "run")).code == 2, "it is merged first"
    answer = call("export", *words)
    assert answer.code == 0, answer.err
    ids = torch.tensor([tokenizer(TEXT).input_ids])
    with torch.no_grad():
        wanted = from_pretrained(tuned, dtype="float32").eval()(ids).logits
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype="float32").eval()(ids).logits
        bare = from_pretrained(tmp_path / "base", dtype="float32", scheme="yarn", factor=4).eval()(ids).logits
    assert (plain - wanted).abs().max() < 1e-3  # frequencies are float32 there, float64 here
    assert (bare - wanted).abs().max() > 0.1, "control: the adapter is in it"
    (tmp_path / "base").rename(tmp_path / "moved")
    lost = call("merge", "-m", str(tuned), "--out", str(tmp_path / "merged"))
    assert lost.code == 2
    assert "--base" in lost.err
    found = call("merge", "-m", str(tuned), "--base", str(tmp_path / "moved"), "--out", str(tmp_path / "merged"))
    assert found.code == 0, found.err
