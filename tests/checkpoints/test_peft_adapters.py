"""A PEFT adapter carries its scheme, whatever the order of patch and PEFT, and is refused on any other base."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_posenc import describe, export, from_pretrained, is_patched, patch_model, unpatch_model
from hf_posenc.checkpoints.adapter_folder import AdapterFolder
from hf_posenc.checkpoints.merge import merge
from hf_posenc.checkpoints.peft import load_peft_adapter
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import CheckpointMismatch, FolderUnusable, ModelNotFound, PeftAdapterMismatch
from hf_posenc.eval.lm.measurable import model_arguments
from hf_posenc.patching.peft_sidecar import PARAMETERS, SIDECAR

from ..small_models import TRAINED, auto_classes, edit
from .conftest import FACTOR

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")

ADAPTER = "adapter_config.json"
PROJECTIONS = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"], "bert": ["query", "value"]}
PER_LAYER = ("t5", {"share_layers": False})


def config(kind: str, **more) -> peft.LoraConfig:
    return peft.LoraConfig(r=2, target_modules=PROJECTIONS[kind], fan_in_fan_out=kind == "gpt2", **more)


def patch_first(model, kind: str, scheme):
    return peft.get_peft_model(patch_model(model, scheme, factor=FACTOR), config(kind))


def peft_first(model, kind: str, scheme):
    return patch_model(peft.get_peft_model(model, config(kind)), scheme, factor=FACTOR)


def posenc_in_peft(model, kind: str, scheme):
    return peft.get_peft_model(patch_model(model, scheme, factor=FACTOR), config(kind, modules_to_save=["posenc"]))


@pytest.fixture
def adapter(make_model, perturb, logits_of, tmp_path):
    """A trained adapter in a folder, and what its model answers."""

    def make(scheme="yarn", kind="llama", order=patch_first, name="adapter"):
        model = order(make_model(kind), kind, scheme)
        perturb(model)
        model.save_pretrained(tmp_path / name)
        return tmp_path / name, logits_of(model)

    return make


@pytest.mark.parametrize("order", [patch_first, peft_first, posenc_in_peft], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("kind", "scheme"), [("llama", "t5"), ("llama", PER_LAYER), ("gpt2", "t5"), ("bert", "t5")], ids=str
)
def test_learned_positions_are_saved_in_every_order(kind, scheme, order, adapter, make_model, logits_of) -> None:
    folder, want = adapter(scheme, kind, order)
    on_plain = load_peft_adapter(make_model(kind), folder, patch="apply")
    assert torch.equal(logits_of(on_plain), want)
    on_patched = load_peft_adapter(patch_model(make_model(kind), scheme, factor=FACTOR), folder)
    assert torch.equal(logits_of(on_patched), want)


def test_from_pretrained_patches_the_base_as_the_adapter_says(make_model, logits_of, adapter, tmp_path) -> None:
    folder, want = adapter("yarn")
    make_model("llama").save_pretrained(tmp_path / "base")
    assert torch.equal(logits_of(from_pretrained(tmp_path / "base", peft_adapter=folder)), want)
    with pytest.raises(CheckpointMismatch, match="'pi', factor 4 was asked for"):
        from_pretrained(tmp_path / "base", scheme="pi", factor=4, peft_adapter=folder)
    edit(folder, ADAPTER, base_model_name_or_path=str(tmp_path / "base"))
    assert torch.equal(logits_of(from_pretrained(folder)), want)  # an adapter's folder names its base


OTHERS: dict[str | None, dict[str, float]] = {"pi": {}, "yarn": {"beta_fast": 16.0}, None: {}}


@pytest.mark.parametrize("scheme", OTHERS)
def test_any_other_base_is_refused_or_patched_on_request(scheme, make_model, logits_of, adapter) -> None:
    folder, want = adapter("yarn")
    model = make_model("llama")
    if scheme is not None:
        patch_model(model, scheme, factor=FACTOR, **OTHERS[scheme])
    before = logits_of(model)
    with pytest.raises(PeftAdapterMismatch, match=r"trained under scheme 'yarn' \(trained 16, target 64\)"):
        load_peft_adapter(model, folder)
    assert torch.equal(logits_of(model), before)
    assert torch.equal(logits_of(load_peft_adapter(model, folder, patch="apply")), want)


def test_an_adapter_without_a_scheme(make_model, logits_of, perturb, tmp_path) -> None:
    model = peft.get_peft_model(make_model("llama"), config("llama"))
    perturb(model)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(load_peft_adapter(make_model("llama"), tmp_path)), logits_of(model))
    with pytest.raises(PeftAdapterMismatch, match="without a scheme"):
        load_peft_adapter(patch_model(make_model("llama"), "yarn", factor=FACTOR), tmp_path)
    make_model("llama").save_pretrained(tmp_path / "base")
    asked = from_pretrained(tmp_path / "base", scheme="yarn", factor=FACTOR, peft_adapter=tmp_path)  # said outright
    assert torch.equal(logits_of(asked), logits_of(patch_model(model, "yarn", factor=FACTOR)))


def test_another_base_length_is_refused_even_on_request(make_model, adapter) -> None:
    folder, _ = adapter("yarn")
    longer = make_model("llama")
    longer.config.max_position_embeddings = 32
    with pytest.raises(PeftAdapterMismatch, match="16 positions, and this one has 32"):
        load_peft_adapter(longer, folder, patch="apply")
    assert not is_patched(longer)


def test_a_loaded_adapter_saves_its_scheme_again_and_no_other(make_model, logits_of, adapter, tmp_path) -> None:
    folder, want = adapter("t5")
    model = load_peft_adapter(make_model("llama"), folder, patch="apply")
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits_of(load_peft_adapter(make_model("llama"), tmp_path / "again", patch="apply")), want)
    unpatch_model(model)
    model.save_pretrained(tmp_path / "again")
    assert not list((tmp_path / "again").glob("position_scheme*"))


def test_auto_classes_refuse_such_an_adapter(make_model, adapter, tmp_path) -> None:
    folder, _ = adapter("yarn")
    make_model("llama").save_pretrained(tmp_path / "base")
    edit(folder, ADAPTER, base_model_name_or_path=str(tmp_path / "base"))
    with auto_classes(), pytest.raises(PeftAdapterMismatch, match=r"Use hf_posenc\.from_pretrained"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_a_folder_holds_the_adapter_that_was_saved_last(adapter, make_model, logits_of, perturb, tmp_path) -> None:
    """With learned positions, then with fixed ones, then on a plain base: nothing of those before is left."""
    folder, _ = adapter("t5")
    assert {SIDECAR, PARAMETERS} <= {p.name for p in folder.iterdir()}
    adapter("yarn")
    assert PARAMETERS not in {p.name for p in folder.iterdir()}
    assert AdapterFolder.open(folder).scheme.layout.default.parts[0][0].record.name == "yarn"
    plain = peft.get_peft_model(make_model("llama"), config("llama"))
    perturb(plain)
    plain.save_pretrained(folder)
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
        folder, _ = adapter(scheme, name=branch)
        edit(folder, ADAPTER, base_model_name_or_path=str(tmp_path / "base"))
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
    folder, _ = adapter("yarn")
    edit(folder, ADAPTER, base_model_name_or_path="owner/base", revision="first")
    hub = {"cache_dir": str(cache), "local_files_only": True}
    expected = logits_of(from_pretrained(tmp_path / "first", peft_adapter=folder))
    assert torch.equal(logits_of(from_pretrained(folder, **hub)), expected)
    chosen = model_arguments(str(folder), dict(hub))
    assert (chosen["pretrained"], chosen["revision"]) == ("owner/base", "first")
    newest = logits_of(from_pretrained("owner/base", peft_adapter=folder, **hub))
    assert not torch.equal(newest, expected), "control: a base that is given has no revision of the adapter's"


def test_a_base_with_a_scheme_of_its_own_is_not_patched_anew(adapter, make_model, tmp_path) -> None:
    folder, _ = adapter("yarn")
    patch_model(make_model("llama"), "pi", factor=FACTOR).save_pretrained(tmp_path / "base")
    with pytest.raises(PeftAdapterMismatch, match="yarn"):
        from_pretrained(tmp_path / "base", peft_adapter=folder)


@pytest.mark.parametrize("write", ["save", "export"])
def test_a_folder_with_an_adapter_is_refused(write: str, tmp_path: Path) -> None:
    """Control: transformers puts the adapter on whatever model is there."""
    adapter = config("llama", init_lora_weights=False)
    peft.get_peft_model(tiny_model("llama"), adapter).save_pretrained(tmp_path)
    before = sorted(tmp_path.iterdir())
    model = patch_model(tiny_model("llama"), "yarn", factor=4)
    with pytest.raises(FolderUnusable, match="PEFT adapter"):
        model.save_pretrained(tmp_path) if write == "save" else export(model, tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    tiny_model("llama").save_pretrained(tmp_path)
    text = torch.arange(3, 35)[None]
    pytest.importorskip("peft.utils.transformers_weight_conversion", reason="transformers 5.24 needs a newer PEFT")
    there = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert not torch.allclose(there(text).logits, tiny_model("llama")(text).logits, atol=0.1)
