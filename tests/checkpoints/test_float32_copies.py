"""On a base in bfloat16, what an adapter trains is float32: steps are not rounded away, and logits survive saving."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hf_posenc import from_pretrained, get_peft_model, load_peft_adapter, patch_model
from hf_posenc.checkpoints.peft import save_peft_adapter

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")

FACTOR, RATE, STEPS = 4, 2e-4, 20
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
        return get_peft_model(patch_model(model, scheme, factor=FACTOR), peft.LoraConfig(r=2, **TARGETS[kind]))

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
    save_peft_adapter(model, tmp_path)
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
