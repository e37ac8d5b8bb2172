"""A PEFT adapter merged into its base: the same logits, one checkpoint, or nothing at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)  # fmt: skip

from hf_posenc import export, from_pretrained, load_starter, merge, patch_model
from hf_posenc.checkpoints.tokenizer import load_tokenizer
from hf_posenc.errors import FolderUnusable, MergeFailed, NotExpressible, PeftAdapterMismatch, UnknownStarter

from ..families.tiny import tiny

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")
TEXT = torch.randint(3, 90, (1, 300), generator=torch.Generator().manual_seed(1))


def trained(config: Any, scheme: str | None, folder: Path, **options: Any) -> Path:
    """An adapter with random weights on the bundled Llama, its base in a folder of its own, with the tokenizer."""
    model, tokenizer = load_starter("llama")
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    base: Any = AutoModelForCausalLM.from_pretrained(folder / "base", dtype="float32")
    if scheme is not None:
        patch_model(base, scheme, factor=4, **options)
    torch.manual_seed(3)
    adapted = peft.get_peft_model(base, config)
    for name, weight in adapted.named_parameters():
        if weight.requires_grad and ("posenc" in name or "norm" in name):
            weight.data.add_(0.1 * torch.randn_like(weight))
    adapted.save_pretrained(folder / "tuned")
    return folder / "tuned"


def lora(**more: Any) -> Any:
    return peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False, **more)


CONFIGS: dict[str, Callable[[], Any]] = {
    "lora": lora,
    "dora": lambda: lora(use_dora=True),
    "trained copies": lambda: lora(modules_to_save=["norm", "embed_tokens"], ensure_weight_tying=True),
    "of the tied output": lambda: peft.LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False),
    "of the tied input": lambda: peft.LoraConfig(r=2, target_modules=["embed_tokens"], init_lora_weights=False),
    "ia3": lambda: peft.IA3Config(
        target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], init_ia3_weights=False
    ),
}


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        *(("lora", "yarn"), ("lora", None), ("dora", "dca"), ("trained copies", "t5"), ("ia3", "yarn")),
        *(("of the tied output", "yarn"), ("of the tied input", None)),
    ],
)
def test_the_merged_model_is_the_adapter(kind: str, scheme: str | None, tmp_path: Path) -> None:
    tuned = trained(CONFIGS[kind](), scheme, tmp_path)
    merged = merge(tuned, tmp_path / "merged")
    assert merged.scheme == scheme
    assert merged.tokenizer
    assert merged.expressible == (scheme == "yarn")
    with torch.no_grad():
        want = from_pretrained(tuned, dtype="float32").eval()(TEXT).logits
        got = from_pretrained(tmp_path / "merged", dtype="float32").eval()(TEXT).logits
        base = from_pretrained(tmp_path / "base", dtype="float32").eval()(TEXT).logits
    assert (got - want).abs().max() < 1e-3 * want.std()
    assert (got - base).abs().max() > 0.1  # control: the adapter does something
    words = AutoTokenizer.from_pretrained(tmp_path / "base")
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").get_vocab() == words.get_vocab()


def test_an_adapter_of_an_encoder_decoder_is_merged(tmp_path: Path) -> None:
    shape = BartConfig(
        vocab_size=64, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
    )  # fmt: skip
    BartForConditionalGeneration(shape).save_pretrained(tmp_path / "base")
    model = patch_model(from_pretrained(tmp_path / "base"), "rope")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "tuned")
    merged = merge(tmp_path / "tuned", tmp_path / "merged")  # which compares logits
    assert (merged.scheme, merged.expressible) == ("rope", False)


def test_the_tokenizer_of_a_family_that_validates_its_configuration(tmp_path: Path) -> None:
    """Qwen 3 lists its layers, and AutoTokenizer compares the list with their number; a guarded one has neither."""
    _, tokenizer = load_starter("llama")
    model = tiny("qwen3", vocab_size=len(tokenizer), num_hidden_layers=2, max_position_embeddings=64)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    peft.get_peft_model(patch_model(base, "yarn", factor=4), lora()).save_pretrained(tmp_path / "tuned")
    merged = merge(tmp_path / "tuned", tmp_path / "merged")
    assert (merged.scheme, merged.tokenizer, merged.expressible) == ("yarn", True, True)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").get_vocab() == tokenizer.get_vocab()
    for plain in (Qwen3Config, Qwen3ForCausalLM):
        with pytest.raises(Exception, match="Load this checkpoint with hf_posenc"):
            plain.from_pretrained(tmp_path / "merged")
    again = from_pretrained(tmp_path / "merged")
    assert again.config.layer_types == base.config.layer_types == ["full_attention"] * 2

    content = json.loads((tmp_path / "merged" / "config.json").read_text())  # as earlier versions wrote it
    kept = content["position_scheme_guard"].pop()
    content[kept[0]] = kept[1]
    (tmp_path / "merged" / "config.json").write_text(json.dumps(content))
    with pytest.raises(Exception, match="num_hidden_layers"):  # control: what leaving them out prevents
        AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert load_tokenizer(str(tmp_path / "merged")).get_vocab() == tokenizer.get_vocab()
    assert from_pretrained(tmp_path / "merged").config.layer_types == base.config.layer_types


def test_a_merge_that_computes_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: an adapter that gets lost in merging."""
    tuned = trained(lora(), "yarn", tmp_path)
    monkeypatch.setattr(peft.PeftModel, "merge_and_unload", lambda self: self.unload(), raising=False)
    for write in (merge, export):
        with pytest.raises(MergeFailed, match="rounding explains"):
            write(tuned, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_checkpoint_that_reads_back_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: one weight is written with another last digit."""
    from hf_posenc.checkpoints import merge as merging

    tuned, loads = trained(lora(), "yarn", tmp_path), []

    def load(*args: Any, **kwargs: Any) -> Any:
        loads.append(from_pretrained(*args, **kwargs))
        if len(loads) == 2:
            next(loads[1].parameters()).data.view(-1)[:400].mul_(1 + 1e-6)
        return loads[-1]

    monkeypatch.setattr(merging, "from_pretrained", load)
    with pytest.raises(MergeFailed, match="read back"):
        merge(tuned, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_checkpoint_whose_logits_round_otherwise_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of some schemes, such as shaw, depend on the addresses of tensors."""
    from hf_posenc.checkpoints import merge as merging

    calls, exact = count(), merging.logits_of
    monkeypatch.setattr(merging, "logits_of", lambda *args: exact(*args) * (1 + 1e-6 * next(calls)))
    merge(trained(lora(), "yarn", tmp_path), tmp_path / "merged")
    assert next(calls) == 4, "control: all logits were rounded otherwise"
    assert (tmp_path / "merged" / "config.json").exists()


@pytest.mark.parametrize("kind", [peft.PromptTuningConfig, peft.PrefixTuningConfig])
def test_what_cannot_be_merged_is_refused(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(NotExpressible, match="cannot be merged"):
        merge(trained(kind(task_type="CAUSAL_LM", num_virtual_tokens=2), "yarn", tmp_path), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_quantised_base_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = trained(lora(), "yarn", tmp_path)
    monkeypatch.setattr(LlamaForCausalLM, "is_quantized", True, raising=False)
    with pytest.raises(NotExpressible, match="quantised"):
        merge(tuned, tmp_path / "merged")


def test_a_full_folder_a_plain_model_and_an_unknown_base_are_refused(tmp_path: Path) -> None:
    tuned = trained(lora(), "yarn", tmp_path)
    with pytest.raises(FolderUnusable, match="not empty"):
        merge(tuned, tmp_path / "base")
    with pytest.raises(PeftAdapterMismatch, match="nothing to merge"):
        merge(tmp_path / "base", tmp_path / "merged")
    with pytest.raises(UnknownStarter):
        merge(tuned, tmp_path / "merged", base="starter:lama")
