"""Checkpoint folders, made once per session; tests damage copies of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model

import hf_posenc
from hf_posenc.checks.tiny_models import tiny_model


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Patched and plain checkpoints, an adapter with its base, and a file."""
    root = tmp_path_factory.mktemp("saved")
    folders = {name: root / name for name in ("llama", "gpt2", "plain", "shards", "adapter", "base", "file")}
    hf_posenc.patch_model(tiny_model("llama"), "yarn", factor=2).save_pretrained(folders["llama"])
    hf_posenc.patch_model(tiny_model("gpt2"), "learned").save_pretrained(folders["gpt2"])
    tiny_model("llama").save_pretrained(folders["plain"])
    tiny_model("llama").save_pretrained(folders["shards"], max_shard_size="50KB")
    tiny_model("llama").save_pretrained(folders["base"])
    folders["file"].write_text("a file")
    folders["words"] = root / "words.txt"
    folders["words"].write_text(" ".join(f"w{i * i % 80}" for i in range(900)))
    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    adapted = get_peft_model(hf_posenc.patch_model(tiny_model("llama"), "kerple"), adapter)
    adapted.save_pretrained(folders["adapter"])
    return folders
