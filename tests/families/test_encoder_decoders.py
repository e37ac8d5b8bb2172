"""Encoder–decoders: a patched stack works inside its model, and leaves the other stack and cross-attention alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, T5EncoderModel

from hf_posenc import (
    describe,
    disable_auto,
    enable_auto,
    from_pretrained,
    get_peft_model,
    load_peft_adapter,
    patch_model,
    scheme_of,
    unpatch_model,
)
from hf_posenc.errors import (
    AlreadyPatched,
    CheckpointMismatch,
    NotPatched,
    OptionOutOfRange,
    PeftAdapterMismatch,
    SchemeNotDefined,
    UnsupportedModel,
)

from .test_families import assert_close
from .tiny import tiny_config, tiny_encoder_decoder, tokens

FAMILIES = ["t5", "umt5", "bart"]
STACKS = ["encoder", "decoder"]
SCHEMES: dict[str, dict[str, Any]] = {
    "alibi": {},
    "t5": {},
    "none": {},
    "yarn": {"factor": 2},
    "window": {"size": 6},
    "sinusoidal": {},
    "fox": {},
}
OF_DECODERS: dict[str, dict[str, Any]] = {"t5+sinks": {"sinks": 2, "recent": 9}, "rope+self_extend": {"factor": 4}}
PAIRS = [(name, scheme) for name in ("t5", "bart") for scheme in (*SCHEMES, *OF_DECODERS)]
PAIRS += [("umt5", "t5"), ("umt5", "window"), ("umt5", "sinusoidal")]
READ_BY_ROW = ("window", "sinusoidal")  # schemes under which BART reads a table, its own or the scheme's
SOURCE, TARGET = 20, 15
pytestmark = pytest.mark.always

families = pytest.mark.parametrize("name", FAMILIES)
stacks = pytest.mark.parametrize("stack", STACKS)


def built(name: str) -> PreTrainedModel:
    """A tiny model whose relative biases, if it has any, are wide enough to tell distances apart."""
    model = tiny_encoder_decoder(name, relative_attention_num_buckets=16, relative_attention_max_distance=12)
    draw = torch.Generator().manual_seed(7)
    for weight_name, weight in model.named_parameters():
        if "relative_attention_bias" in weight_name:
            weight.data.copy_(torch.randn(weight.shape, generator=draw))
    return model


def stack_of(model: PreTrainedModel, name: str) -> Any:
    return model.get_encoder() if name == "encoder" else model.get_decoder()


def logits(model: PreTrainedModel, source: Tensor, target: Tensor, **call: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=source, decoder_input_ids=target, use_cache=False, **call).logits


def token_by_token(model: PreTrainedModel, source: Tensor, target: Tensor, **call: Any) -> Tensor:
    past, found = None, []
    with torch.no_grad():
        read = model.get_encoder()(input_ids=source, **call)
        for at in range(target.shape[1]):
            out = model(
                encoder_outputs=read,
                decoder_input_ids=target[:, at : at + 1],
                past_key_values=past,
                use_cache=True,
                **call,
            )
            past = out.past_key_values
            found.append(out.logits)
    return torch.cat(found, dim=1)


def padded(source: Tensor, *, left: bool) -> tuple[Tensor, Tensor]:
    """Source ids with five of padding on one side, and their mask."""
    padding = torch.zeros(len(source), 5, dtype=torch.long)
    pair = (padding, source) if left else (source, padding)
    mask = (padding, torch.ones_like(source)) if left else (torch.ones_like(source), padding)
    return torch.cat(pair, 1), torch.cat(mask, 1)


@pytest.mark.parametrize("name", [*FAMILIES, "mt5"])
@stacks
def test_the_stacks_own_positions(name: str, stack: str) -> None:
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    stock = logits(model, source, target)
    patch_model(stack_of(model, stack), "host")
    assert describe(stack_of(model, stack)).proof.verdict == "identity"
    assert_close(logits(model, source, target), stock)
    assert_close(token_by_token(model, source, target), stock)
    unpatch_model(stack_of(model, stack))
    assert torch.equal(logits(model, source, target), stock)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]


@pytest.mark.parametrize(("name", "scheme"), PAIRS)
@stacks
def test_every_way_to_read_a_text(name: str, stack: str, scheme: str) -> None:
    """At once, token by token, and with padding on both sides of the source; the other stack stays as it was."""
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    patched, options = stack_of(model, stack), SCHEMES | OF_DECODERS
    stock = logits(model, source, target)
    if stack == "encoder" and scheme in OF_DECODERS:
        with pytest.raises(SchemeNotDefined, match="needs a decoder"):
            patch_model(patched, scheme, **options[scheme])
        return
    patch_model(patched, scheme, **options[scheme])
    whole = logits(model, source, target)
    assert float((whole - stock).abs().max() / stock.std()) > 1e-2
    assert_close(token_by_token(model, source, target), whole)
    for left in (True, False):
        if left and name == "bart" and (stack == "decoder" or scheme in READ_BY_ROW):
            continue  # the tokens of BART's encoder have other rows of its table after padding, patched or not
        ids, mask = padded(source, left=left)
        assert_close(logits(model, ids, target, attention_mask=mask), whole)
        assert_close(token_by_token(model, ids, target, attention_mask=mask), whole)
    unpatch_model(patched)
    assert torch.equal(logits(model, source, target), stock)


@pytest.mark.parametrize("name", ["t5", "umt5"])
@stacks
def test_a_copied_table_is_the_models_own(name: str, stack: str) -> None:
    """Scheme t5 with T5's buckets and numbers gives T5's logits, padded and token by token; with others it does not."""
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    patched = stack_of(model, stack)
    ids, mask = padded(source, left=True)
    stock, stock_padded = logits(model, source, target), logits(model, ids, target, attention_mask=mask)
    patch_model(patched, "t5", num_buckets=16, max_distance=12, share_layers=name == "t5")
    assert float((logits(model, source, target) - stock).abs().max() / stock.std()) > 1e-2
    for block in patched.block:
        attention = block.layer[0].SelfAttention
        if attention.has_relative_attention_bias:
            attention.scheme.table.weight.data.copy_(attention.relative_attention_bias.weight)
    assert_close(logits(model, source, target), stock)
    assert_close(token_by_token(model, source, target), stock)
    assert_close(logits(model, ids, target, attention_mask=mask), stock_padded)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_two_stacks_with_different_schemes(name: str) -> None:
    """Patched one after the other, and removed in the same order; cross-attention keeps its class and its outputs."""
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    stock = logits(model, source, target)
    encoder, decoder = stack_of(model, "encoder"), stack_of(model, "decoder")
    classes = {module_name: type(module) for module_name, module in model.named_modules()}
    patch_model(encoder, "alibi")
    first = logits(model, source, target)
    patch_model(decoder, "t5")
    assert (describe(encoder).scheme, describe(decoder).scheme) == ("alibi", "t5")
    both = logits(model, source, target)
    assert_close(token_by_token(model, source, target), both)
    changed = {n for n, module in model.named_modules() if n in classes and type(module) is not classes[n]}
    assert changed
    assert not any("encoder_attn" in n or "EncDecAttention" in n for n in changed)
    unpatch_model(decoder)
    assert torch.equal(logits(model, source, target), first)
    unpatch_model(encoder)
    assert torch.equal(logits(model, source, target), stock)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_generated_with_and_without_a_cache(name: str) -> None:
    """Greedy and by beams, whose cache is reordered at every step."""
    model, source = built(name), tokens(SOURCE)
    patch_model(stack_of(model, "encoder"), "alibi")
    patch_model(stack_of(model, "decoder"), "t5")
    for beams in (1, 3):
        call = {"max_new_tokens": 8, "min_new_tokens": 8, "num_beams": beams, "decoder_start_token_id": 1}
        with_cache = model.generate(source, use_cache=True, **call)
        assert torch.equal(with_cache, model.generate(source, use_cache=False, **call))


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


@pytest.mark.parametrize(("name", "length"), [("t5", 512), ("mt5", 1024), ("umt5", 1024)])
def test_lengths_that_the_configuration_does_not_say(name: str, length: int) -> None:
    model = tiny_encoder_decoder(name)
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


@families
@pytest.mark.parametrize("scheme", ["yarn", "t5", "learned"])
def test_patched_saved_and_loaded_as_a_whole(name: str, scheme: str, tmp_path: Path) -> None:
    """Both stacks have the scheme and a proof each; the checkpoint carries it, by our loader and the Auto classes."""
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    stock, config = logits(model, source, target), model.config
    patch_model(model, scheme, **({"factor": 2} if scheme == "yarn" else {"trained_length": 64}))
    report = describe(model)
    assert (report.model, list(report.stacks)) == (type(model).__name__, STACKS)
    assert sum(report.touched.values()) == sum(sum(part.touched.values()) for part in report.stacks.values())
    assert {part.model for part in report.stacks.values()} == {type(stack_of(model, one)).__name__ for one in STACKS}
    if (name, scheme) != ("bart", "learned"):  # which keeps its tables
        assert {part.proof.verdict for part in report.stacks.values()} == {"moved"}
    assert all(part in str(report) for part in ("encoder: ", "decoder: "))
    whole = logits(model, source, target)
    assert_close(token_by_token(model, source, target), whole)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"hf_posenc\.from_pretrained"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    enable_auto()
    try:
        others = [from_pretrained(tmp_path), AutoModelForSeq2SeqLM.from_pretrained(tmp_path)]
    finally:
        disable_auto()
    for loaded in others:
        assert type(loaded) is type(model)
        assert describe(loaded) == report
        assert_close(logits(loaded.eval(), source, target), whole)
    unpatch_model(model)
    assert torch.equal(logits(model, source, target), stock)
    assert model.config is config
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]
    assert_close(logits(unpatch_model(others[0]), source, target), stock)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_both_stacks_or_none(name: str) -> None:
    """A scheme for decoders fails on the encoder; one stack that is patched already is left as it is."""
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    stock = logits(model, source, target)
    with pytest.raises(SchemeNotDefined, match="needs a decoder"):
        patch_model(model, "t5+sinks")
    with pytest.raises(OptionOutOfRange, match="layers are 0 … 1"):  # of the decoder, after the encoder was patched
        patch_model(model, "alibi", layers={"2": "none"})
    assert torch.equal(logits(model, source, target), stock)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]
    patch_model(model.get_decoder(), "t5")
    with pytest.raises(AlreadyPatched, match="The decoder of this"):
        patch_model(model, "alibi")
    with pytest.raises(NotPatched, match="encoder none, decoder t5"):
        describe(model)
    assert describe(model.get_decoder()).scheme == "t5"
    unpatch_model(model)
    assert torch.equal(logits(model, source, target), stock)
    with pytest.raises(NotPatched):
        unpatch_model(model)
    with pytest.raises(UnsupportedModel, match=r"model\.get_encoder\(\) or model\.get_decoder\(\)"):
        scheme_of(model)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_checkpoint_that_would_lose_the_scheme_is_refused(name: str, tmp_path: Path) -> None:
    model = built(name)
    patch_model(model.get_decoder(), "alibi")
    with pytest.raises(CheckpointMismatch, match="patch both stacks at once"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
    model.state_dict()  # which says nothing of positions either way
    unpatch_model(model)
    model.save_pretrained(tmp_path)
    patch_model(model, "alibi")
    unpatch_model(model.get_encoder())
    with pytest.raises(CheckpointMismatch, match="The encoder of this"):
        model.save_pretrained(tmp_path)


@pytest.mark.parametrize(("name", "modules"), [("t5", ["q", "v"]), ("bart", ["q_proj", "v_proj"])])
def test_under_peft(name: str, modules: list[str], tmp_path: Path) -> None:
    from peft import LoraConfig

    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    model.save_pretrained(tmp_path / "base")
    patch_model(model, "t5")
    adapted = get_peft_model(model, LoraConfig(target_modules=modules, r=2, init_lora_weights=False))
    whole = logits(adapted, source, target)
    adapted.save_pretrained(tmp_path / "adapter")
    base = from_pretrained(tmp_path / "base")
    with pytest.raises(PeftAdapterMismatch, match="carries none"):
        load_peft_adapter(base, tmp_path / "adapter")
    loaded = load_peft_adapter(base, tmp_path / "adapter", patch="apply")
    assert describe(loaded).scheme == "t5"
    assert_close(logits(loaded.eval(), source, target), whole)


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


def test_patched_while_other_threads_compute() -> None:
    """They see both stacks patched, or none."""
    model, source, target = built("t5"), tokens(SOURCE), tokens(TARGET)
    stock = logits(model, source, target)
    patched = logits(patch_model(model, "alibi"), source, target)
    unpatch_model(model)
    done, found = threading.Event(), []

    def compute() -> None:
        while not done.is_set():
            found.append(logits(model, source, target))

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            patch_model(model, "alibi")
            unpatch_model(model)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert all(min(float((out - one).abs().max()) for one in (stock, patched)) < 1e-4 for out in found)


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
