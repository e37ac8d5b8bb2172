"""QLoRA: adapters on a base in 4 bits, where bitsandbytes is installed; refused in words where it is not."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from hf_posenc import from_pretrained, load_peft_adapter, load_starter
from hf_posenc.checkpoints import load as loading
from hf_posenc.cli import main
from hf_posenc.errors import TrainingImpossible
from hf_posenc.starters.loading import starter_path

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not among this package's dependencies"
)
TUNE = ["finetune", "-m", "starter:llama", "-s", "yarn", "-f", "2", "--steps", "1", "--dtype", "4bit"]


def test_it_is_refused_in_words_without_bitsandbytes(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main([*TUNE, "--out", str(tmp_path / "run")])
    assert ended.value.code not in (0, None)
    assert "pip install bitsandbytes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@needs_bitsandbytes
def test_an_adapter_on_four_bits_comes_back(tmp_path) -> None:
    from hf_posenc.training import Training, finetune

    def base():
        return from_pretrained(starter_path("llama"), scheme="yarn", factor=2, **loading.four_bit_keywords())

    model, (_, tokenizer) = base(), load_starter("llama")
    assert loading.is_quantised(model)
    text = [" ".join(f"name_{n}" for n in range(800))]
    with pytest.raises(TrainingImpossible, match="quantised"):
        finetune(model, tokenizer, text, Training(length=128, steps=1, method="full"))
    tuned = finetune(model, tokenizer, text, Training(length=128, steps=2), out=tmp_path)
    assert all(w.dtype == torch.float32 for w in tuned.model.parameters() if w.requires_grad)
    assert json.loads((tmp_path / "run.json").read_text())["quantised"] is True
    ids = torch.arange(3, 300)[None]
    with torch.no_grad():
        assert torch.equal(load_peft_adapter(base(), tmp_path)(ids).logits, tuned.model(ids).logits)
