"""Folders of PEFT adapters that were edited, overwritten, or loaded on another base."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_posenc import describe, from_pretrained, is_patched, patch_model
from hf_posenc.checkpoints.adapter_folder import AdapterFolder
from hf_posenc.checkpoints.merge import merge
from hf_posenc.checkpoints.peft import get_peft_model, load_peft_adapter, save_peft_adapter
from hf_posenc.errors import ModelNotFound, PeftAdapterMismatch
from hf_posenc.eval.lm.measurable import model_arguments
from hf_posenc.patching.peft_sidecar import PARAMETERS, SIDECAR

from ..small_models import TRAINED, edit
from .conftest import FACTOR

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")


def lora(**more: Any) -> Any:
    return peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **more)


@pytest.fixture
def adapter(make_model, perturb, tmp_path) -> Callable[..., Path]:
    """A trained adapter in a folder."""

    def make(scheme: Any = "t5", name: str = "adapter", **options: Any) -> Path:
        base = (
            make_model("llama")
            if scheme is None
            else patch_model(make_model("llama"), scheme, **{"factor": FACTOR, **options})
        )
        model = get_peft_model(base, lora())
        perturb(model)
        save_peft_adapter(model, tmp_path / name)
        return tmp_path / name

    return make


def test_a_folder_holds_the_adapter_that_was_saved_last(adapter, make_model, logits_of, perturb, tmp_path) -> None:
    """With learned positions, then with fixed ones, then on a plain base: nothing of those before is left."""
    folder = adapter("t5")
    assert {SIDECAR, PARAMETERS} <= {p.name for p in folder.iterdir()}
    adapter("yarn")
    assert PARAMETERS not in {p.name for p in folder.iterdir()}
    assert AdapterFolder.open(folder).scheme.layout.default.parts[0][0].record.name == "yarn"
    plain = get_peft_model(make_model("llama"), lora())
    perturb(plain)
    save_peft_adapter(plain, folder)
    assert not {SIDECAR, PARAMETERS} & {p.name for p in folder.iterdir()}
    assert AdapterFolder.open(folder).scheme is None
    assert AdapterFolder.open(folder).position_parameters() == {}
    loaded = load_peft_adapter(make_model("llama"), folder)
    assert not is_patched(loaded)
    assert torch.equal(logits_of(loaded, TRAINED), logits_of(plain, TRAINED))


def cached(folder: Path, cache: Path, commit: str, *, branch: str, name: str = "adapter") -> None:
    """Put a folder into a cache of the Hub, as ``owner/name`` at a commit."""
    home = cache / f"models--owner--{name}"
    shutil.copytree(folder, home / "snapshots" / commit)
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / branch).write_text(commit)


def test_options_of_the_hub_hold_for_adapters(adapter, make_model, tmp_path) -> None:
    """The newest adapter has yarn, the one of the branch ``first`` t5; no other cache knows the name."""
    plain, cache = make_model("llama"), tmp_path / "cache"
    plain.save_pretrained(tmp_path / "base")
    for commit, branch, scheme in (("0" * 40, "first", "t5"), ("1" * 40, "main", "yarn")):
        folder = adapter(scheme, name=branch)
        edit(folder, "adapter_config.json", base_model_name_or_path=str(tmp_path / "base"))
        cached(folder, cache, commit, branch=branch)
    hub = {"cache_dir": str(cache), "local_files_only": True}
    assert describe(from_pretrained("owner/adapter", **hub)).scheme == "yarn"
    assert describe(from_pretrained("owner/adapter", revision="first", **hub)).scheme == "t5"
    on_top = load_peft_adapter(make_model("llama"), "owner/adapter", patch="apply", revision="first", **hub)
    assert describe(on_top).scheme == "t5"
    of_base = from_pretrained(tmp_path / "base", peft_adapter="owner/adapter", revision="first", **hub)
    assert describe(of_base).scheme == "yarn", "the revision is that of the model named first"
    assert merge("owner/adapter", tmp_path / "merged", revision="first", **hub).scheme == "t5"
    chosen = model_arguments("owner/adapter", {"revision": "first", **hub})
    assert describe(from_pretrained(chosen["pretrained"], peft_adapter=chosen["peft"])).scheme == "t5"
    assert "revision" not in chosen
    with pytest.raises(ModelNotFound, match=r"'owner/adapter'.+is not available"):
        load_peft_adapter(make_model("llama"), "owner/adapter", revision="second", **hub)


def test_the_base_has_the_revision_that_the_adapter_names(adapter, make_model, logits_of, tmp_path) -> None:
    """As PEFT's own Auto classes load it; the newest base has other weights."""
    cache = tmp_path / "cache"
    base = make_model("llama")
    for commit, branch in (("0" * 40, "first"), ("1" * 40, "main")):
        base.save_pretrained(tmp_path / branch)
        cached(tmp_path / branch, cache, commit, branch=branch, name="base")
        with torch.no_grad():
            base.lm_head.weight.mul_(2)
    folder = adapter("yarn")
    edit(folder, "adapter_config.json", base_model_name_or_path="owner/base", revision="first")
    hub = {"cache_dir": str(cache), "local_files_only": True}
    expected = logits_of(from_pretrained(tmp_path / "first", peft_adapter=folder))
    assert torch.equal(logits_of(from_pretrained(folder, **hub)), expected)
    chosen = model_arguments(str(folder), dict(hub))
    assert (chosen["pretrained"], chosen["revision"]) == ("owner/base", "first")
    newest = logits_of(from_pretrained("owner/base", peft_adapter=folder, **hub))
    assert not torch.equal(newest, expected), "control: a base that is given has no revision of the adapter's"


def test_a_base_with_a_scheme_of_its_own_is_not_patched_anew(adapter, make_model, tmp_path) -> None:
    folder = adapter("yarn")
    patch_model(make_model("llama"), "pi", factor=FACTOR).save_pretrained(tmp_path / "base")
    with pytest.raises(PeftAdapterMismatch, match="yarn"):
        from_pretrained(tmp_path / "base", peft_adapter=folder)
