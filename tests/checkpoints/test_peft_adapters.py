"""A PEFT adapter carries its scheme, whatever the order of patch and PEFT, and is refused on any other base."""

from __future__ import annotations

import pytest
import torch

from hf_posenc import from_pretrained, is_patched, patch_model, unpatch_model
from hf_posenc.checkpoints.peft import get_peft_model, load_peft_adapter, save_peft_adapter
from hf_posenc.errors import CheckpointMismatch, PeftAdapterMismatch

from ..small_models import edit
from .conftest import FACTOR, auto_classes

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")

ADAPTER = "adapter_config.json"
PROJECTIONS = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"], "bert": ["query", "value"]}
PER_LAYER = ("t5", {"share_layers": False})


def config(kind: str, **more) -> peft.LoraConfig:
    return peft.LoraConfig(r=2, target_modules=PROJECTIONS[kind], fan_in_fan_out=kind == "gpt2", **more)


def patch_first(model, kind: str, scheme):
    return get_peft_model(patch_model(model, scheme, factor=FACTOR), config(kind))


def peft_first(model, kind: str, scheme):
    return patch_model(peft.get_peft_model(model, config(kind)), scheme, factor=FACTOR)


def posenc_in_peft(model, kind: str, scheme):
    return get_peft_model(patch_model(model, scheme, factor=FACTOR), config(kind, modules_to_save=["posenc"]))


@pytest.fixture
def adapter(make_model, perturb, logits_of, tmp_path):
    """A trained adapter in a folder, and what its model answers."""

    def make(kind="llama", scheme="yarn", order=patch_first):
        model = order(make_model(kind), kind, scheme)
        perturb(model)
        save_peft_adapter(model, tmp_path / "adapter")
        return tmp_path / "adapter", logits_of(model)

    return make


@pytest.mark.parametrize("order", [patch_first, peft_first, posenc_in_peft], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("kind", "scheme"), [("llama", "t5"), ("llama", PER_LAYER), ("gpt2", "t5"), ("bert", "t5")], ids=str
)
def test_learned_positions_are_saved_in_every_order(kind, scheme, order, adapter, make_model, logits_of) -> None:
    folder, want = adapter(kind, scheme, order)
    on_plain = load_peft_adapter(make_model(kind), folder, patch="apply")
    assert torch.equal(logits_of(on_plain), want)
    on_patched = load_peft_adapter(patch_model(make_model(kind), scheme, factor=FACTOR), folder)
    assert torch.equal(logits_of(on_patched), want)


def test_from_pretrained_patches_the_base_as_the_adapter_says(make_model, logits_of, adapter, tmp_path) -> None:
    folder, want = adapter("llama", "yarn")
    make_model("llama").save_pretrained(tmp_path / "base")
    assert torch.equal(logits_of(from_pretrained(tmp_path / "base", peft_adapter=folder)), want)
    assert torch.equal(
        logits_of(from_pretrained(tmp_path / "base", scheme="yarn", factor=4, peft_adapter=folder)), want
    )
    with pytest.raises(CheckpointMismatch, match="'pi' was asked for"):
        from_pretrained(tmp_path / "base", scheme="pi", factor=4, peft_adapter=folder)
    edit(folder, ADAPTER, base_model_name_or_path=str(tmp_path / "base"))
    assert torch.equal(logits_of(from_pretrained(folder)), want)  # an adapter's folder names its base


OTHERS: dict[str | None, dict[str, float]] = {"pi": {}, "yarn": {"beta_fast": 16.0}, None: {}}


@pytest.mark.parametrize("scheme", OTHERS)
def test_any_other_base_is_refused_or_patched_on_request(scheme, make_model, logits_of, adapter) -> None:
    folder, want = adapter("llama", "yarn")
    model = make_model("llama")
    if scheme is not None:
        patch_model(model, scheme, factor=FACTOR, **OTHERS[scheme])
    before = logits_of(model)
    with pytest.raises(PeftAdapterMismatch, match=r"trained under scheme 'yarn' \(trained 16, target 64\)"):
        load_peft_adapter(model, folder)
    assert torch.equal(logits_of(model), before)
    assert torch.equal(logits_of(load_peft_adapter(model, folder, patch="apply")), want)


def test_an_adapter_without_a_scheme(make_model, logits_of, perturb, tmp_path) -> None:
    model = get_peft_model(make_model("llama"), config("llama"))
    perturb(model)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(load_peft_adapter(make_model("llama"), tmp_path)), logits_of(model))
    with pytest.raises(PeftAdapterMismatch, match="without a scheme"):
        load_peft_adapter(patch_model(make_model("llama"), "yarn", factor=FACTOR), tmp_path)
    make_model("llama").save_pretrained(tmp_path / "base")
    asked = from_pretrained(tmp_path / "base", scheme="yarn", factor=FACTOR, peft_adapter=tmp_path)  # said outright
    assert torch.equal(logits_of(asked), logits_of(patch_model(model, "yarn", factor=FACTOR)))


def test_another_base_length_is_refused_even_on_request(make_model, adapter) -> None:
    folder, _ = adapter("llama", "yarn")
    longer = make_model("llama")
    longer.config.max_position_embeddings = 32
    with pytest.raises(PeftAdapterMismatch, match="16 positions, and this one has 32"):
        load_peft_adapter(longer, folder, patch="apply")
    assert not is_patched(longer)


def test_a_loaded_adapter_saves_its_scheme_again_and_no_other(make_model, logits_of, adapter, tmp_path) -> None:
    folder, want = adapter("llama", "t5")
    model = load_peft_adapter(make_model("llama"), folder, patch="apply")
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits_of(load_peft_adapter(make_model("llama"), tmp_path / "again", patch="apply")), want)
    unpatch_model(model)
    model.save_pretrained(tmp_path / "again")
    assert not list((tmp_path / "again").glob("position_scheme*"))


def test_auto_classes_refuse_such_an_adapter(make_model, adapter, tmp_path) -> None:
    from transformers import AutoModelForCausalLM

    folder, _ = adapter("llama", "yarn")
    make_model("llama").save_pretrained(tmp_path / "base")
    edit(folder, ADAPTER, base_model_name_or_path=str(tmp_path / "base"))
    with auto_classes(), pytest.raises(PeftAdapterMismatch, match=r"Use hf_posenc\.from_pretrained"):
        AutoModelForCausalLM.from_pretrained(folder)
