"""What else PEFT offers: linear layers of a scheme, prompts and prefixes, several adapters at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import get_peft_model as with_scheme
from hf_posenc import load_peft_adapter, patch_model
from hf_posenc.checks.case import Case
from hf_posenc.checks.tiny_models import tiny_model as contract_model
from hf_posenc.errors import PeftAdapterMismatch, TrainingImpossible

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")

FACTOR, VIRTUAL, TRAINED, SHORT = 4, 4, 32, 12
TWO = ["q_proj", "v_proj"]
METHODS = {
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=VIRTUAL),
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=VIRTUAL),
}


@pytest.mark.parametrize("scheme", ["fire", "fox", "deberta", "yarn"])
def test_all_linear_layers_adapt_as_they_merge(scheme, make_model, logits_of, perturb) -> None:
    """PEFT finds the layers by their class, in a scheme as well."""
    config = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(patch_model(make_model("llama"), scheme, factor=FACTOR), config)
    perturb(model)
    adapted = logits_of(model)
    assert (logits_of(model.merge_and_unload()) - adapted).abs().max() < 1e-3 * adapted.std()


WPE = {"r": 2, "target_modules": ["wpe"], "init_lora_weights": False}


@pytest.mark.parametrize("scheme", ["alibi", "learned_hier"])
def test_rows_of_a_table_that_is_not_read_by_rows(scheme, make_model, logits_of) -> None:
    """LoRA would bring back positions that the scheme has taken out, and merging would drop them."""
    model = patch_model(make_model("gpt2"), scheme, factor=FACTOR)
    want, names = logits_of(model, SHORT), [name for name, _ in model.named_modules()]
    for wrap in (peft.get_peft_model, with_scheme):
        with pytest.raises(TrainingImpossible, match=r"position table .*wpe, and scheme"):
            wrap(model, peft.LoraConfig(**WPE))
        assert [name for name, _ in model.named_modules()] == names
        assert torch.equal(logits_of(model, SHORT), want)


def adapted(scheme: str | None, method: str, kind: str = "llama") -> nn.Module:
    """A contract model before which strong virtual tokens stand."""
    model = contract_model(kind)
    if scheme is not None:
        Case(kind, scheme, factor=FACTOR).apply(model)
    model = peft.get_peft_model(model, METHODS[method]()).eval()
    for name, weight in model.named_parameters():
        if "prompt_encoder" in name:
            weight.data.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)))
    return model


@torch.no_grad()
def padded_and_alone(model: nn.Module, virtual: int) -> tuple[float, float]:
    """How far a left-padded row is from the row alone: its logits, and the scores of four generated tokens."""
    generator = torch.Generator().manual_seed(1)
    short, long = (torch.randint(3, 96, (1, length), generator=generator) for length in (20, 27))
    batch, pads = torch.cat((nn.functional.pad(short, (7, 0)), long)), 7
    mask = torch.ones_like(batch)
    mask[0, :pads] = 0
    rows: list[Tensor] = []
    scores: list[Tensor] = []
    for ids, kept in ((batch, mask), (short, torch.ones_like(short))):
        rows.append(model(input_ids=ids, attention_mask=kept).logits[0, virtual:][-20:])
        made = model.generate(
            input_ids=ids, attention_mask=kept, max_new_tokens=4, do_sample=False, pad_token_id=0, output_scores=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        scores.append(torch.stack([step[0] for step in made.scores]))
    return tuple((one - two).abs().max().item() for one, two in (rows, scores))  # type: ignore[return-value]


ROUNDING = 1e-4  # of logits of about 1


@pytest.mark.parametrize("scheme", ["yarn", "t5", "dynamic_ntk", "dca", "sinusoidal", "ms_poe"])
@pytest.mark.parametrize("method", ["prompt", "prefix"])
def test_left_padding_behind_virtual_tokens_changes_nothing(method, scheme) -> None:
    logits, scores = padded_and_alone(adapted(scheme, method), VIRTUAL if method == "prompt" else 0)
    assert logits <= ROUNDING
    assert scores <= ROUNDING


def test_control_stock_llama_deviates() -> None:
    """Control: positions counted through the padding, which is between the virtual tokens and the text."""
    logits, _ = padded_and_alone(adapted(None, "prefix"), 0)
    assert logits > 0.1


def lora(**more) -> peft.LoraConfig:
    return peft.LoraConfig(r=2, target_modules=TWO, **more)


def test_several_adapters_on_one_base(make_model, logits_of, perturb, tmp_path) -> None:
    wanted = {}
    for name in ("one", "two"):
        model = with_scheme(patch_model(make_model("llama"), "t5", factor=FACTOR), lora(modules_to_save=["posenc"]))
        perturb(model)
        if name == "two":
            model.base_model.model.model.posenc.modules_to_save["default"].table.weight.data.mul_(2)
        wanted[name] = logits_of(model)
        model.save_pretrained(tmp_path / name)
    both = load_peft_adapter(make_model("llama"), tmp_path / "one", patch="apply", adapter_name="one")
    both = load_peft_adapter(both, tmp_path / "two", adapter_name="two")
    for name in ("two", "one"):
        both.set_adapter(name)
        assert torch.equal(logits_of(both), wanted[name])
    with pytest.raises(PeftAdapterMismatch, match="called 'two' already"):
        load_peft_adapter(both, tmp_path / "two", adapter_name="two")
    both.save_pretrained(tmp_path / "both")
    for name in ("one", "two"):
        again = load_peft_adapter(make_model("llama"), tmp_path / "both" / name, patch="apply")
        assert torch.equal(logits_of(again), wanted[name])


@pytest.mark.parametrize("scheme", ["yarn", "alibi"])
@pytest.mark.parametrize("method", ["prefix", "prompt"])
def test_prompts_are_put_before_a_generated_text_once(method: str, scheme: str) -> None:
    """The tokens of forward passes over the whole text."""
    model = adapted(scheme, method)
    ids = torch.arange(3, 15)[None]
    made = model.generate(input_ids=ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        for _ in range(6):
            scores = model(input_ids=ids, use_cache=False).logits[:, -1]
            scores[:, model.generation_config.eos_token_id] = -torch.inf
            ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=1)
    assert made.tolist() == ids.tolist()
