"""The proof of effect: moved, identity, deferred."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from hf_posenc import describe, from_pretrained, is_patched, patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model

from ..families.tiny import tiny

TEXT = torch.randint(3, 60, (1, TRAINED_LENGTH - 1), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "scheme"), [("llama", "rope"), ("llama", "yarn"), ("gpt2", "learned"), ("bert", "learned")]
)
def test_the_models_own_scheme_is_an_identity(name: str, scheme: str) -> None:
    proof = describe(patch_model(tiny_model(name), scheme)).proof
    assert proof.verdict == "identity"
    assert proof.change < 1e-4


def test_freshly_initialised_model_shows_a_faint_scheme() -> None:
    """Its attention is almost even, so a scaling hardly shows: the probe sharpens the scores until it does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(tiny_model("llama").config)
    assert describe(patch_model(model, "pi", factor=1.1)).proof.verdict == "moved"


def test_meta_weights_defer_the_proof() -> None:
    with torch.device("meta"):
        model = LlamaForCausalLM(tiny_model("llama").config)
    report = describe(patch_model(model, "yarn", factor=4))
    assert report.proof.verdict == "deferred"
    assert "not loaded" in str(report)


def test_remap_whose_window_is_never_left_is_an_identity() -> None:
    """Distances up to the window stay, and without a factor no token of the target stands further away."""
    model = patch_model(tiny_model("llama"), "rerope", window=TRAINED_LENGTH - 1)
    assert describe(model).proof.verdict == "identity"


@pytest.mark.parametrize("step", ["install_atomic_save", "install_batching_check"])
def test_what_fails_after_the_proof_leaves_no_patch(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(f"hf_posenc.patching.patch.{step}", fails)
    model = tiny_model("llama")
    with pytest.raises(RuntimeError, match="no"):
        patch_model(model, "yarn", factor=4)
    assert not is_patched(model)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]


def test_training_mode_and_random_numbers_are_left_alone() -> None:
    model = tiny_model("gpt2").train()
    model.transformer.h[1].eval()
    state = torch.random.get_rng_state()
    patch_model(model, "rope", factor=2)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.transformer.h[0].attn.training
    assert not model.transformer.h[1].attn.training


@pytest.mark.parametrize("layers", [{"1": "none"}, {"0": "rope", "1": "alibi"}], ids=str)
def test_every_kind_of_layer_is_proved(layers: dict[int | str, str]) -> None:
    """The first layer is unpatched and the second is not, and the report must show that."""
    assert describe(patch_model(tiny_model("llama"), "rope", layers=layers)).proof.verdict == "moved"


@pytest.mark.parametrize(
    ("size", "own", "verdict"), [(12, 7, "identity"), (7, 7, "identity"), (5, 7, "moved"), (12, None, "moved")]
)
def test_a_window_within_the_models_own(size: int, own: int | None, verdict: str) -> None:
    """A wider one hides nothing more; logits say so, though a layer that is run without a mask does not."""
    model = tiny("mistral", num_hidden_layers=2, max_position_embeddings=TRAINED_LENGTH, sliding_window=own)
    ids = torch.randint(3, 96, (1, 2 * TRAINED_LENGTH))
    with torch.no_grad():
        before = model(ids).logits
        patch_model(model, "window", size=size, factor=4)
        changed = (model(ids).logits - before).abs().max() > 1e-4
    assert describe(model).proof.verdict == verdict
    assert bool(changed) == (verdict == "moved")


@pytest.mark.parametrize("scheme", ["host+cope", "rope+cope", "yarn+cope"])
@pytest.mark.parametrize("spread", [1e-6, 1e-4, 0.02, 0.3])
def test_what_was_zero_until_it_was_trained_loads_again(scheme: str, spread: float, tmp_path: Path) -> None:
    """Without a factor nothing but CoPE's table differs from the model: trained, it moves outputs by any amount."""
    model = patch_model(tiny_model("llama"), scheme)
    assert describe(model).proof.verdict == "identity"
    for name, weight in model.named_parameters():
        if "posenc" in name:
            torch.nn.init.normal_(weight, std=spread)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert torch.equal(loaded(TEXT).logits, model(TEXT).logits)
    assert describe(loaded).proof.verdict == ("identity" if spread < 1e-5 else "moved")


@pytest.mark.parametrize("name", ["gpt2", "bert"])
@torch.no_grad()
def test_host_keeps_the_position_table_under_a_bias(name: str) -> None:
    """Against the unpatched model with the bias added to its mask."""
    model = tiny_model(name)
    heads, length = model.config.num_attention_heads, TEXT.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    bias = -torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)])[:, None, None] * distance.abs()
    if name == "gpt2":
        bias = bias.masked_fill(distance < 0, torch.finfo(torch.float32).min)
    expected = model(TEXT, attention_mask=bias[None])[0]
    torch.testing.assert_close(patch_model(model, "host+alibi")(TEXT)[0], expected, atol=1e-5, rtol=0)
    assert all(weight.requires_grad for weight in model.parameters())
