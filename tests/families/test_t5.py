"""T5 and its kin: lengths, memory, gradients, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import T5EncoderModel

from hf_posenc import describe, from_pretrained, patch_model, unpatch_model
from hf_posenc.errors import UnsupportedModel

from .encoder_decoders import INTERFACE, SOURCE, TARGET, built
from .tiny import tiny, tiny_config, tiny_encoder_decoder, tokens


@pytest.mark.skipif(not INTERFACE, reason="T5 computes its attention itself")
def test_the_encoder_of_t5_alone() -> None:
    torch.manual_seed(0)
    model, ids = T5EncoderModel(tiny_config("t5", d_kv=16)).eval(), tokens(SOURCE)
    with torch.no_grad():
        stock = model(ids).last_hidden_state
        patch_model(model, "alibi")
        assert describe(model).proof.verdict == "moved"
        assert not torch.equal(model(ids).last_hidden_state, stock)
        unpatch_model(model)
        assert torch.equal(model(ids).last_hidden_state, stock)


@pytest.mark.skipif(not INTERFACE, reason="T5 computes its attention itself")
@pytest.mark.parametrize("name", ["t5", "umt5"])
def test_a_table_that_some_layers_read_is_trained(name: str, tmp_path: Path) -> None:
    """Layers with ``host`` keep the model's own biases; only where no layer reads them is there nothing to train."""
    model, ids = built(name).get_encoder(), tokens(SOURCE)
    tables = {key: weight for key, weight in model.named_parameters() if "relative_attention_bias" in key}
    patch_model(model, "alibi", layers={"1::2": "host"})
    model(ids).last_hidden_state.square().sum().backward()
    read = {key for key, weight in tables.items() if weight.grad is not None and weight.grad.any()}
    assert read
    assert read <= {key for key, weight in tables.items() if weight.requires_grad}
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path, model_class=type(model))
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]
    unpatch_model(model)
    patch_model(model, "alibi")
    assert not any(weight.requires_grad for weight in tables.values()), "control: no layer reads them"


@pytest.mark.parametrize(("name", "length"), [("t5", 512), ("mt5", 1024), ("umt5", 1024)])
def test_lengths_that_the_configuration_does_not_say(name: str, length: int) -> None:
    model = built(name)
    decoder = model.get_decoder()
    assert not hasattr(decoder.config, "max_position_embeddings")
    patch_model(decoder, "alibi", factor=2)
    report = describe(decoder)
    assert (report.trained_length, report.target_length) == (length, 2 * length)
    assert decoder.config.max_position_embeddings == 2 * length
    unpatch_model(decoder)
    assert not hasattr(decoder.config, "max_position_embeddings")
    patch_model(decoder, "alibi", trained_length=64)
    assert describe(decoder).trained_length == 64


def test_no_matrix_of_biases_is_made() -> None:
    """A patched stack makes no tensor of ``[heads, length, length]`` numbers; T5 itself does."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            self.numbers = max(self.numbers, out.numel() if isinstance(out, Tensor) else 0)
            return out

    model, ids = built("t5").get_encoder(), tokens(512, rows=1)
    heads = model.config.num_heads
    found = []
    for patched in (False, True):
        if patched:
            patch_model(model, "none")
        with torch.no_grad(), Largest() as largest:
            model(ids)
        found.append(largest.numbers)
    assert found[0] >= heads * 512 * 512 > 4 * found[1]


@pytest.mark.parametrize("first", ["patch", "lora"])
def test_lora_of_its_own_bias(first: str) -> None:
    """An adapter around the table takes part as in the unpatched model."""
    peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")
    config = peft.LoraConfig(r=2, target_modules=["relative_attention_bias"], init_lora_weights=False)
    found = []
    for steps in (["lora"], ["patch", "lora"] if first == "patch" else ["lora", "patch"]):
        model = built("t5")
        for step in steps:
            torch.manual_seed(1)
            model = patch_model(model, "host") if step == "patch" else peft.get_peft_model(model, config)
        model.eval()
        with torch.no_grad():
            found.append(model(input_ids=tokens(SOURCE), decoder_input_ids=tokens(TARGET)).logits)
    assert (found[0] - found[1]).abs().max() < 1e-4 * found[0].std()


@pytest.mark.parametrize("name", ["t5", "mpnet"])
def test_its_own_bias_is_offloaded(name: str) -> None:
    cpu_offload = pytest.importorskip("accelerate", reason="offloading needs accelerate").cpu_offload
    model = built("t5").get_encoder() if name == "t5" else tiny("mpnet", masked=True)
    with torch.no_grad():
        want = model(tokens(SOURCE))[0]
        cpu_offload(patch_model(model, "host"), execution_device=torch.device("cpu"))
        assert (model(tokens(SOURCE))[0] - want).abs().max() < 1e-4 * want.std()


def test_trained_with_its_own_bias() -> None:
    """Gradients of T5's table under a scheme that keeps it are T5's own; under one that replaces it, there are none."""
    model, source, target = built("t5"), tokens(SOURCE), tokens(TARGET)

    def gradients() -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        model(input_ids=source, decoder_input_ids=target, labels=target).loss.backward()
        return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    stock = gradients()
    patch_model(model, "host")
    found = gradients()
    assert found.keys() == stock.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, stock[name], rtol=1e-4, atol=1e-6, msg=name)
    unpatch_model(model)
    patch_model(model, "alibi")
    assert {name for name in stock if "relative_attention_bias" in name} == stock.keys() - gradients().keys()


def test_captured_calls_have_the_models_own_bias() -> None:
    from hf_posenc.insight.probe.capture import capture_attention

    model, ids = built("t5").get_encoder(), tokens(12, rows=1)
    with capture_attention(model, lambda layer, call: None), pytest.raises(UnsupportedModel, match='scheme "host"'):
        model(ids)
    patch_model(model, "host")
    found: list[int] = []
    with capture_attention(model, lambda layer, call: found.append(len(call.terms.bias))):
        model(ids)
    assert found == [1] * model.config.num_layers


@pytest.mark.skipif(INTERFACE, reason="T5 hands queries and keys over")
def test_a_t5_that_computes_its_attention_itself_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="Update transformers"):
        patch_model(tiny_encoder_decoder("t5"), "alibi")
