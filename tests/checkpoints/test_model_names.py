"""Every form in which a model may be named, and what is said of those that lead nowhere."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_posenc import describe, export, from_pretrained, load_starter, patch_model
from hf_posenc.checkpoints.model_name import MANIFEST, RUN, ModelName, file_sizes
from hf_posenc.errors import CheckpointMismatch, ModelNotFound, PeftAdapterMismatch, UnknownStarter, WrongKind
from hf_posenc.insight.bench import bench
from hf_posenc.insight.probe import probe
from hf_posenc.starters.loading import starter_path

from ..small_models import edit

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")
STARTER = str(starter_path("llama"))


@pytest.fixture
def adapter(tmp_path: Path) -> Callable[..., Path]:
    """An adapter in a folder; its base is named as given."""

    def save(name: str = "tuned", base: str | None = None) -> Path:
        model, _ = load_starter("llama")
        folder = tmp_path / name
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        peft.get_peft_model(patch_model(model, "yarn", factor=4), config).save_pretrained(folder)
        return folder if base is None else edit(folder, "adapter_config.json", base_model_name_or_path=base)

    return save


def test_starters(tmp_path: Path) -> None:
    named = ModelName.of("starter:llama")
    assert (named.model, named.adapter, named.dtype) == (STARTER, None, "float32")
    model: Any = from_pretrained("starter:llama")
    want, _ = load_starter("llama")
    assert model.dtype == torch.float32
    assert torch.equal(model.state_dict()["model.norm.weight"], want.state_dict()["model.norm.weight"])
    assert from_pretrained("starter:bert", dtype="bfloat16").dtype == torch.bfloat16
    with pytest.raises(UnknownStarter, match="'llama'"):
        from_pretrained("starter:lama")


def test_probe_bench_and_export_take_names(adapter: Callable[..., Path], tmp_path: Path) -> None:
    tuned = adapter()
    live, tokenizer = from_pretrained(tuned), load_starter("llama")[1]
    few = {"length": 64, "text": [Path(__file__)], "samples": 1, "rows": 4}
    by_name, of_live = probe(tuned, **few), probe(live, tokenizer, **few)
    assert by_name.variants[0].label == describe(live).scheme
    assert by_name.to_dict() == of_live.to_dict()
    with pytest.raises(WrongKind, match="A tokenizer is needed"):
        probe(live, **few)
    (cell,) = bench(STARTER, "alibi", [16], rounds=1)
    assert cell.state == "done"
    exported = export(tuned, tmp_path / "plain")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype="float32")
    assert exported.written["rope_parameters"]["rope_type"] == plain.config.rope_parameters["rope_type"]
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, live.eval()(ids).logits, atol=1e-3, rtol=0)
    assert AutoTokenizer.from_pretrained(tmp_path / "plain").get_vocab() == tokenizer.get_vocab()
    with pytest.raises(ModelNotFound):
        export(tmp_path / "nowhere", tmp_path / "nothing")


def test_an_adapter_finds_its_base(adapter: Callable[..., Path], tmp_path: Path) -> None:
    tuned = adapter()
    assert ModelName.of(tuned) == ModelName(STARTER, str(tuned))
    assert ModelName.of("starter:llama", adapter=tuned) == ModelName(STARTER, str(tuned))
    moved = adapter("moved", "/another/env/lib/python3.12/site-packages/hf_posenc/starters/llama")
    assert ModelName.of(moved).model == STARTER
    other = tmp_path / "other" / "hf_posenc" / "starters" / "llama"  # an installation that is still there
    shutil.copytree(STARTER, other)
    beside = ModelName.of(adapter("beside", str(other)))
    assert (beside.model, beside.dtype) == (str(other), "float32"), "and not the stored bfloat16"
    lost = adapter("lost", str(tmp_path / "gone"))
    with pytest.raises(ModelNotFound, match="--base"):
        from_pretrained(lost)
    assert describe(from_pretrained("starter:llama", peft_adapter=lost)).scheme == "yarn"
    on_itself = adapter("twice", str(tuned))
    with pytest.raises(PeftAdapterMismatch, match="adapter itself"):
        from_pretrained(on_itself)
    with pytest.raises(PeftAdapterMismatch, match="holds no PEFT adapter"):
        ModelName.of(STARTER, adapter=STARTER)


def test_the_tokenizer_of_an_adapter(adapter: Callable[..., Path]) -> None:
    tuned = adapter()
    assert ModelName.of(tuned).tokenizer == STARTER
    (tuned / "tokenizer_config.json").write_text("{}")
    assert ModelName.of(tuned).tokenizer == str(tuned)


def test_a_run_without_a_result_is_its_last_complete_checkpoint(adapter: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (1, 2):
        (run / f"checkpoint-{step}").parent.mkdir(exist_ok=True)
        adapter().rename(run / f"checkpoint-{step}")
    (run / RUN).write_text("{}")
    with pytest.raises(CheckpointMismatch, match="no result and no complete checkpoint"):
        ModelName.of(run)
    first = run / "checkpoint-1"
    (first / MANIFEST).write_text(json.dumps(file_sizes(first)))
    assert ModelName.of(run) == ModelName(STARTER, str(first))
    assert describe(from_pretrained(run)).scheme == "yarn"


def test_a_name_of_the_hub_fails_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a network: huggingface_hub alone retries every file, 48 s in all."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    started = time.monotonic()
    with pytest.raises(ModelNotFound, match=r"Hub cannot be asked.*hf download owner/name"):
        from_pretrained("owner/name", cache_dir=tmp_path)
    assert time.monotonic() - started < 5
