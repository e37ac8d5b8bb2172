"""PEFT's and transformers' own functions on patched models: learned positions train, are saved, resumed and merged."""

from __future__ import annotations

import copy
import json
import re

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import Trainer, TrainingArguments
from transformers.integrations.peft import MIN_PEFT_VERSION

from hf_posenc import describe, from_pretrained, patch_model
from hf_posenc.errors import NotExpressible, PeftAdapterMismatch
from hf_posenc.patching.peft_sidecar import SIDECAR, position_parameters

from ..processes import end, finish, start
from ..small_models import auto_classes

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")

FACTOR = 4
LORA = {"r": 2, "target_modules": ["q_proj", "v_proj"]}
PROMPTS = {
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}
CONFIGS = {
    **PROMPTS,
    "lora": lambda: peft.LoraConfig(**LORA),
    "dora": lambda: peft.LoraConfig(**LORA, use_dora=True),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "lora_of_transformers": lambda: peft.LoraConfig(**LORA),
}


@pytest.fixture
def make_patched(make_model):
    return lambda scheme="t5": patch_model(make_model("llama"), scheme, factor=FACTOR)


@pytest.fixture
def peft_adapter(make_patched, perturb, logits_of, tmp_path):
    """A folder that PEFT's own functions have written, and what the model answered."""

    def make(config=CONFIGS["lora"], scheme="t5"):
        model = peft.get_peft_model(make_patched(scheme), config())
        perturb(model)
        model.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter", logits_of(model)

    return make


def skip_without_adapters_of_transformers() -> None:
    if Version(peft.__version__) < Version(MIN_PEFT_VERSION):
        pytest.skip(f"adapters of transformers {transformers.__version__} need PEFT {MIN_PEFT_VERSION}")


def wrap(model, name):
    if name == "lora_of_transformers":
        skip_without_adapters_of_transformers()
        model.add_adapter(CONFIGS[name]())
        return model
    return peft.get_peft_model(model, CONFIGS[name]())


@pytest.mark.parametrize("name", CONFIGS)
def test_learned_positions_train_with_every_method(name, make_patched) -> None:
    model = wrap(make_patched(), name)
    positions = position_parameters(model)
    assert positions
    assert all(parameter.requires_grad for parameter in positions.values())
    model.train()(torch.arange(5, 45)[None]).logits.square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in positions.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_they_are_saved_and_loaded_by_peft_itself(name, make_patched, perturb, logits_of, tmp_path) -> None:
    model = wrap(make_patched(), name)
    perturb(model)
    copy.deepcopy(model).save_pretrained(tmp_path)
    base = make_patched()
    if name == "lora_of_transformers":
        base.load_adapter(tmp_path)
        loaded = base
    else:
        loaded = peft.PeftModel.from_pretrained(base, tmp_path)
    assert torch.equal(logits_of(loaded), logits_of(model))
    assert not any(parameter.requires_grad for parameter in position_parameters(loaded).values())  # for inference


def test_stock_loaders_refuse_another_base(peft_adapter, make_model, logits_of) -> None:
    folder, _ = peft_adapter()
    model = patch_model(make_model("llama"), "t5", factor=2 * FACTOR)
    before = logits_of(model)
    with pytest.raises(PeftAdapterMismatch, match="trained under scheme 't5'"):
        peft.PeftModel.from_pretrained(model, folder)
    with pytest.raises(PeftAdapterMismatch, match="trained under scheme 't5'"):
        model.load_adapter(folder)
    assert torch.equal(logits_of(model), before)


def test_auto_classes_of_peft_patch_the_base(peft_adapter, make_model, logits_of, tmp_path) -> None:
    make_model("llama").save_pretrained(tmp_path / "base")
    model = peft.get_peft_model(from_pretrained(tmp_path / "base", scheme="yarn", factor=FACTOR), CONFIGS["lora"]())
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(PeftAdapterMismatch, match="this base carries none"):
        peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    with auto_classes():
        loaded = peft.AutoPeftModel.from_pretrained(tmp_path / "adapter")
        assert describe(loaded).scheme == "yarn"
        loaded = peft.PeftModel.from_pretrained(make_model("llama"), tmp_path / "adapter")
    assert torch.equal(logits_of(loaded), logits_of(model))


def test_a_second_adapter_and_hot_swapping_check_the_positions(peft_adapter, make_patched, tmp_path) -> None:
    from peft.utils.hotswap import hotswap_adapter

    folder, _ = peft_adapter()
    model = peft.get_peft_model(make_patched(), CONFIGS["lora"]())
    with pytest.raises(PeftAdapterMismatch, match="share"):
        model.load_adapter(folder, "second")
    with pytest.raises(PeftAdapterMismatch, match="trained under scheme 't5'"):
        hotswap_adapter(peft.get_peft_model(make_patched("pi"), CONFIGS["lora"]()), folder, "default")


class Rows(torch.utils.data.Dataset):
    """Fixed random rows."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index):
        ids = torch.randint(5, 64, (40,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def trainer_of(model, folder, steps, **more):
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=2, learning_rate=1e-2, save_steps=2,
        lr_scheduler_type="constant", use_cpu=True, report_to="none", disable_tqdm=True, seed=0, **more,
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows())


def patched_first(make_model):
    return peft.get_peft_model(patch_model(make_model("llama"), "t5", factor=FACTOR), CONFIGS["lora"]())


def adapted_first(make_model):
    return patch_model(peft.get_peft_model(make_model("llama"), CONFIGS["lora"]()), "t5", factor=FACTOR)


@pytest.mark.parametrize("order", [patched_first, adapted_first], ids=lambda f: f.__name__)
def test_trainer_resumes_learned_positions(order, make_model, logits_of, tmp_path) -> None:
    whole = order(make_model)
    start = {name: parameter.detach().clone() for name, parameter in position_parameters(whole).items()}
    trainer_of(whole, tmp_path / "whole", 4).train()
    assert all((parameter - start[name]).abs().max() > 1e-3 for name, parameter in position_parameters(whole).items())
    trainer_of(order(make_model), tmp_path / "cut", 2).train()
    resumed = order(make_model)
    trainer_of(resumed, tmp_path / "cut", 4).train(resume_from_checkpoint=True)
    assert torch.equal(logits_of(resumed), logits_of(whole))


def test_the_card_follows_the_scheme_and_keeps_what_else_it_says(peft_adapter, make_patched) -> None:
    folder, _ = peft_adapter(scheme="yarn")
    card = (folder / "README.md").read_text()
    assert "from_pretrained(" in card
    (folder / "README.md").write_text(f"My own words.\n\n{card}")
    peft.get_peft_model(make_patched("pi"), CONFIGS["lora"]()).save_pretrained(folder)
    card = (folder / "README.md").read_text()
    assert card.startswith("My own words.")
    assert re.findall(r"`hf_posenc`: (\w+)", card) == ["pi"]


def test_a_conversion_to_lora_is_refused(make_patched, tmp_path):
    config = peft.LoraConfig(r=4, lora_alpha=4, target_modules=["q_proj"], init_lora_weights="pissa")
    model = peft.get_peft_model(make_patched("t5"), config)
    with pytest.raises(NotExpressible):
        model.save_pretrained(tmp_path / "converted", path_initial_model_for_weight_conversion=str(tmp_path / "first"))
    assert not (tmp_path / "converted").exists()


@pytest.mark.parametrize("schemes", [("alibi", None, "yarn"), (None, "yarn")])
def test_each_model_saves_its_own_scheme(schemes, make_model, logits_of, tmp_path) -> None:
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    make_model("llama").save_pretrained(tmp_path / "base")
    models = {}
    for scheme in schemes:
        model = make_model("llama")
        models[scheme] = peft.get_peft_model(model if scheme is None else patch_model(model, scheme, factor=2), config)
    for scheme, model in models.items():
        model.save_pretrained(tmp_path / str(scheme))
        again = from_pretrained(tmp_path / "base", peft_adapter=tmp_path / str(scheme))
        assert scheme is None or describe(again).scheme == scheme
        assert (logits_of(again) - logits_of(model)).abs().max() < 1e-6  # the same float32 operations
    assert not (tmp_path / "None" / SIDECAR).exists()
    assert json.loads((tmp_path / "None" / "adapter_config.json").read_text())["peft_type"] == "LORA"
    assert type(config) is peft.LoraConfig, "the caller's own object is left alone"


pytest.importorskip("peft", reason="hooks in PEFT need the extra `train`")

HOOKED = "import peft; assert hasattr(peft.PeftModel.save_pretrained, 'posenc_hooked')"


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "import hf_posenc, transformers.trainer_utils",  # which imports PEFT at its top
        "from hf_posenc.training import finetune",
    ],
)
def test_any_order_of_imports(first):
    assert finish(start(["-c", f"{first}\n{HOOKED}\nprint('hooked')"])).endswith("hooked\n")


@pytest.mark.slow
def test_control_without_this_package_nothing_is_hooked():
    assert "AssertionError" in end(start(["-c", HOOKED]))[2]
