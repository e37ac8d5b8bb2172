"""Commands accept the folder that ``finetune`` writes: an adapter, whose base they find and load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_posenc import (
    from_pretrained,
    get_peft_model,
    load_starter,
    patch_model,
)
from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.checkpoints.export import export_native
from hf_posenc.errors import NotExpressible

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")
TEXT = torch.randint(3, 90, (1, 300), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def adapter(tmp_path: Path) -> Callable[[object], Path]:
    """Saves an adapter of a kind, as `hf-posenc finetune` does: with the tokenizer, the base in another folder."""

    def save(config: object) -> Path:
        model, tokenizer = load_starter("llama")
        model.save_pretrained(tmp_path / "base")
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype="float32")
        get_peft_model(patch_model(base, "yarn", factor=4), config).save_pretrained(tmp_path / "tuned")
        tokenizer.save_pretrained(tmp_path / "tuned")
        return tmp_path / "tuned"

    return save


def test_an_adapter_is_exported_merged_and_evaluated(adapter: Callable, call: Callable, tmp_path: Path) -> None:
    tuned = adapter(peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    answer = call("export", "-m", str(tuned), "--out", str(tmp_path / "plain"), "--dtype", "float32")
    assert answer.code == 0, answer.err
    with torch.no_grad():
        want = from_pretrained(tuned, dtype="float32").eval()(TEXT).logits
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype="float32").eval()(TEXT).logits
        base = from_pretrained(tmp_path / "base", dtype="float32", scheme="yarn", factor=4).eval()(TEXT).logits
    assert (plain - want).abs().max() < 1e-3  # frequencies are float32 there, float64 here
    assert (base - want).abs().max() > 0.1  # the adapter is in it
    measured = [
        call(
            "eval", "-m", str(model), "-l", "128", "-t", "posenc_ppl", "--samples", "1", "--json", "--dtype", "float32"
        )
        for model in (tuned, tmp_path / "plain")
    ]
    assert [answer.code for answer in measured] == [0, 0], measured[0].err
    values = [[row["value"] for row in answer.data] for answer in measured]
    assert values[0] == pytest.approx(values[1], abs=1e-3, rel=1e-4)  # a perplexity, which is e to the loss, among them


def test_an_unmerged_adapter_is_not_exported(adapter: Callable, call: Callable, tmp_path: Path) -> None:
    tuned = adapter(peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    answer = call("export", "-m", str(tuned), "--out", str(tmp_path / "plain"))
    assert answer.code == 1
    assert "cannot be merged" in answer.err
    assert not (tmp_path / "plain").exists()
    with pytest.raises(NotExpressible, match="has a PEFT adapter"):
        export_native(from_pretrained(tuned), tmp_path / "plain")
    assert Checkpoint.open(tuned).hf_config().to_dict() == Checkpoint.open(tmp_path / "base").hf_config().to_dict()
