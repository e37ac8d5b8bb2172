"""Quantised bases: projections are called, their weights are not used, cast or moved."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, LlamaForCausalLM, TorchAoConfig

from hf_posenc import from_pretrained, patch_model, unpatch_model
from hf_posenc.checkpoints.export import export
from hf_posenc.checkpoints.load import is_quantised
from hf_posenc.checkpoints.model_digest import model_digest, sampled_weights_digest
from hf_posenc.checks import longest_case
from hf_posenc.checks.tiny_models import tiny_model as contract_model
from hf_posenc.errors import NotExpressible, UnsupportedModel
from hf_posenc.patching.weights import REARRANGES, keep_arranged


class PackedLinear(nn.Module):
    """A linear layer as quantisers leave it: the weight is packed bytes of another shape, and only `forward` knows."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.scale = linear.weight.abs().max().item() / 127
        packed = (linear.weight / self.scale).round().to(torch.int8).view(torch.uint8).reshape(-1, 1)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.view(torch.int8).reshape(self.out_features, self.in_features)
        return nn.functional.linear(x, weight.to(x.dtype) * self.scale)


class Unpacked(nn.Linear):
    """The same numbers in an ordinary layer."""

    def __init__(self, packed: PackedLinear) -> None:
        super().__init__(packed.in_features, packed.out_features, bias=False)
        self.weight.data = packed.weight.view(torch.int8).reshape(self.weight.shape) * packed.scale


def pack(model: nn.Module, kind: type = nn.Linear, make: Any = PackedLinear) -> nn.Module:
    """The model with its projections packed; or, from packed ones, as they were."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, kind) and "lm_head" not in name:
                setattr(parent, name, make(child))
    return model


@pytest.mark.parametrize("to", ["transformers", "auto", "gguf", "bundle"])
@pytest.mark.parametrize("how", ["packed", "said"])
def test_quantised_weights_are_exported_nowhere(
    to: Any, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed bytes, as of bitsandbytes, and what says that it is floating, as torchao's: the model knows."""
    pytest.importorskip("gguf", reason="no dependency; it writes GGUF where installed")
    model = patch_model(pack(contract_model("llama")) if how == "packed" else contract_model("llama"), "yarn", factor=4)
    if how == "said":
        monkeypatch.setattr(type(model), "is_quantized", True, raising=False)
    with pytest.raises(NotExpressible, match="quantised"):
        export(model, tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_quantised_projections_are_called_and_their_weights_not_used() -> None:
    """Every hook: a scheme on packed weights computes what it computes on the same weights unpacked."""
    for scheme in ("yarn", "cable", "dca", "deberta", "dynamic_ntk", "none", "shaw", "sinks", "ssmax", "xpos", "t5"):
        case = longest_case("llama", scheme)
        packed = pack(case.fresh())
        before = {name: weight.clone() for name, weight in packed.named_parameters() if weight.dtype == torch.uint8}
        twin = pack(copy.deepcopy(packed), PackedLinear, Unpacked)
        for model in (packed, twin):
            torch.manual_seed(0)  # some schemes draw their parameters
            case.apply(model)
        assert before
        assert all(torch.equal(weight, packed.get_parameter(name)) for name, weight in before.items())
        assert all(weight.is_floating_point() for name, weight in packed.named_parameters() if "posenc" in name), case
        ids = torch.randint(3, 96, (1, 40), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            deviation = (packed(ids).logits - twin(ids).logits).abs().max().item()
        assert deviation <= 1e-5, (case, deviation)


def of_torchao(quantization: Any) -> Any:
    return TorchAoConfig(quantization.Int8WeightOnlyConfig())


def of_bnb(_: Any) -> Any:
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)


@pytest.mark.parametrize(("package", "config"), [("torchao.quantization", of_torchao), ("bitsandbytes", of_bnb)])
def test_real_weights(package: str, config: Any, tmp_path: Path) -> None:
    """A scheme of every route: an effect, saved and loaded after it computed, and undone."""
    asked = config(pytest.importorskip(package, reason="no dependency; it quantises where installed"))
    contract_model("llama").save_pretrained(tmp_path / "plain")
    ids = torch.randint(3, 96, (1, 40), generator=torch.Generator().manual_seed(0))
    for scheme in ("yarn", "t5", "rerope", "deberta", "dynamic_ntk"):
        model: Any = LlamaForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=asked, device_map="cpu")
        keep_arranged(model)
        assert is_quantised(model)
        with torch.no_grad():
            plain = model(ids).logits
            patch_model(model, scheme, factor=4)
            patched = model(ids).logits
            assert (patched - plain).abs().max() > 0.01
            model.save_pretrained(tmp_path / scheme)
            again: Any = from_pretrained(tmp_path / scheme, device_map="cpu")
            assert torch.equal(again(ids).logits, patched)
            assert model_digest(again) == model_digest(model)
            projection = again.model.layers[0].self_attn.q_proj.weight
            before = sampled_weights_digest(again)
            assert before == sampled_weights_digest(model)
            getattr(projection, "qdata", projection.data).neg_()
            assert sampled_weights_digest(again) != before
            assert model_digest(again) != model_digest(model)
            assert torch.equal(unpatch_model(model)(ids).logits, plain)


def test_rearranged_weights_are_refused() -> None:
    """bitsandbytes, where a CPU has AVX512-BF16: what it rearranged as it computed, its `state_dict` undoes wrongly."""
    model: Any = contract_model("llama")
    layer = model.model.layers[0].mlp.up_proj
    setattr(layer, REARRANGES, True)
    patch_model(model, "yarn", factor=4)
    assert not getattr(layer, REARRANGES)
    unpatch_model(model)
    layer.weight.quant_state = SimpleNamespace(packing_format_for_cpu=True)
    with pytest.raises(UnsupportedModel):
        patch_model(model, "yarn", factor=4)
