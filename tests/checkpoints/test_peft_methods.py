"""What else PEFT offers: linear layers of a scheme, prompts and prefixes, several adapters, and copies in float32."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import from_pretrained, load_peft_adapter, patch_model
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
    with pytest.raises(TrainingImpossible, match=r"position table .*wpe, and scheme"):
        peft.get_peft_model(model, peft.LoraConfig(**WPE))
    assert [name for name, _ in model.named_modules()] == names
    assert torch.equal(logits_of(model, SHORT), want)


def virtual(scheme: str | None, method: str, kind: str = "llama") -> nn.Module:
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
    logits, scores = padded_and_alone(virtual(scheme, method), VIRTUAL if method == "prompt" else 0)
    assert logits <= ROUNDING
    assert scores <= ROUNDING


def test_control_stock_llama_deviates() -> None:
    """Control: positions counted through the padding, which is between the virtual tokens and the text."""
    logits, _ = padded_and_alone(virtual(None, "prefix"), 0)
    assert logits > 0.1


def lora(**more) -> peft.LoraConfig:
    return peft.LoraConfig(r=2, target_modules=TWO, **more)


def test_several_adapters_on_one_base(make_model, logits_of, perturb, tmp_path) -> None:
    wanted = {}
    for name in ("one", "two"):
        model = peft.get_peft_model(
            patch_model(make_model("llama"), "t5", factor=FACTOR), lora(modules_to_save=["posenc"])
        )
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
    model = virtual(scheme, method)
    ids = torch.arange(3, 15)[None]
    made = model.generate(input_ids=ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        for _ in range(6):
            scores = model(input_ids=ids, use_cache=False).logits[:, -1]
            scores[:, model.generation_config.eos_token_id] = -torch.inf
            ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=1)
    assert made.tolist() == ids.tolist()


RATE, STEPS = 2e-4, 20
LEARNED = ["t5", "fox", "transformer_xl"]
TARGETS = {
    "llama": {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["embed_tokens", "norm", "input_layernorm"]},
    "gpt2": {"target_modules": ["c_attn"], "modules_to_save": ["wte", "ln_1", "ln_f"], "fan_in_fan_out": True},
    "bert": {"target_modules": ["query", "value"], "modules_to_save": ["word_embeddings", "LayerNorm"]},
}


@pytest.fixture
def adapted(make_model):
    """A model in bfloat16 whose norms, embeddings and learned positions train beside LoRA."""

    def make(kind="llama", scheme="t5", dtype=torch.bfloat16):
        model = make_model(kind).to(dtype)
        return peft.get_peft_model(patch_model(model, scheme, factor=FACTOR), peft.LoraConfig(r=2, **TARGETS[kind]))

    return make


def texts(length: int = 40) -> torch.Tensor:
    return torch.randint(5, 64, (2, length), generator=torch.Generator().manual_seed(4))


def train(model: nn.Module, *, autocast: bool, steps: int = STEPS) -> None:
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(input_ids=texts(), labels=texts()).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()


def share_moved(model: nn.Module, *, autocast: bool = False) -> dict[str, float]:
    """The share of the numbers that training moves, of each kind that trains."""
    before = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}
    train(model, autocast=autocast)
    moved: dict[str, list[torch.Tensor]] = {}
    for name, weight in model.named_parameters():
        if name in before:
            kind = "positions" if "posenc" in name else "norm" if weight.ndim == 1 else "matrix"
            moved.setdefault(kind, []).append((weight != before[name]).flatten())
    return {kind: torch.cat(masks).float().mean().item() for kind, masks in moved.items()}


@pytest.mark.parametrize("autocast", [False, True])
def test_norms_and_positions_move_in_bfloat16(adapted, autocast) -> None:
    moved = share_moved(adapted(), autocast=autocast)
    assert moved["norm"] == 1
    assert moved["positions"] > 0.5  # buckets of distances that the text does not have stay
    assert moved["matrix"] > 0.5  # so do embeddings of other tokens


def test_control_copies_in_bfloat16_do_not_move(make_model) -> None:
    model = peft.get_peft_model(make_model("llama").bfloat16(), peft.LoraConfig(r=2, **TARGETS["llama"]))
    assert share_moved(model)["norm"] < 0.2


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", TARGETS)
def test_the_rest_of_the_model_computes_in_its_own_dtype(adapted, kind, autocast) -> None:
    """The output of every layer has the dtype of the layers of a model without copies."""
    model = adapted(kind, "yarn" if kind != "bert" else "t5")
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
    dtypes: dict[str, torch.dtype] = {}
    for name, module in model.named_modules():
        if "lora_" not in name and ("modules_to_save" in name or name.endswith(("attn", "mlp", "attention.self"))):
            module.register_forward_hook(
                lambda *call, name=name: dtypes.__setitem__(
                    name, call[-1].dtype if isinstance(call[-1], torch.Tensor) else call[-1][0].dtype
                )
            )
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        assert model(input_ids=texts()).logits.dtype == torch.bfloat16
    assert dtypes
    assert set(dtypes.values()) == {torch.bfloat16}


@pytest.mark.parametrize("scheme", LEARNED)
@pytest.mark.parametrize("loader", ["package", "peft"])
def test_a_saved_adapter_has_the_logits_of_the_trained_model(
    scheme, loader, adapted, make_model, logits_of, tmp_path
) -> None:
    model = adapted(scheme=scheme)
    train(model, autocast=False, steps=3)
    model.save_pretrained(tmp_path)
    base = patch_model(make_model("llama").bfloat16(), scheme, factor=FACTOR)
    again = load_peft_adapter(base, tmp_path) if loader == "package" else peft.PeftModel.from_pretrained(base, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert torch.equal(logits_of(again), logits_of(model))


def test_merging_and_unloading_give_the_dtype_back(adapted, logits_of, tmp_path) -> None:
    model = adapted()
    train(model, autocast=False)
    before = logits_of(model).float()
    merged = copy.deepcopy(model).merge_and_unload()
    assert {weight.dtype for weight in merged.parameters()} == {torch.bfloat16}
    assert not any(module._forward_hooks for module in merged.modules())
    assert torch.equal(logits_of(merged), logits_of(model.merge_and_unload()))
    assert (logits_of(merged).float() - before).abs().mean() < 0.1  # of logits up to 8; merging rounds W + BA
    merged.save_pretrained(tmp_path)
    assert torch.equal(logits_of(from_pretrained(tmp_path)), logits_of(merged))
    plain = adapted().unload()
    assert {weight.dtype for weight in plain.parameters()} == {torch.bfloat16}
