"""GGUF files: read by their own package and, where it is installed, computed by llama.cpp itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hf_posenc import export, load_starter, patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import NotExpressible, NotPatched, TokenizerLeftOut

gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install gguf)")

FACTOR = 4
TEXT = torch.randint(3, 96, (1, FACTOR * TRAINED_LENGTH), generator=torch.Generator().manual_seed(0))
USUAL = 0.1 * math.log(FACTOR) + 1  # what llama.cpp multiplies YaRN's cosines by, unasked
# Scheme, options, type in the file, its attn_factor, whether frequencies are listed.
CASES: list[tuple[str, dict[str, Any], str, float, bool]] = [
    ("rope", {}, "none", 1.0, False),
    ("abf", {}, "none", 1.0, False),
    ("ntk", {}, "none", 1.0, False),
    ("pi", {}, "linear", 1.0, False),
    ("yarn", {}, "yarn", 1.0, False),
    ("yarn", {"attention_factor": 1.3}, "yarn", 1.3 / USUAL, False),
    ("ntk_parts", {}, "yarn", 1 / USUAL, False),
    ("yarn", {"truncate": False}, "none", USUAL, True),
    ("llama3", {}, "none", 1.0, True),
    ("ntk_parts_v1", {}, "none", 1.0, True),
    ("mrrope", {}, "none", USUAL, True),
    ("yarn+resonance", {}, "none", USUAL, True),
    ("proportional", {"p": 0.5}, "none", 1.0, True),
    ("none", {}, "none", 1.0, True),
]


def written(folder: Path, scheme: str, options: dict[str, Any], dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A patched model, and the reader of its file."""
    model = patch_model(tiny_model("llama").to(dtype), scheme, factor=FACTOR, **options)
    export(model, folder, to="gguf")
    return model, gguf.GGUFReader(folder / "model.gguf")


@pytest.mark.parametrize(("scheme", "options", "kind", "attn_factor", "listed"), CASES, ids=str)
def test_the_rotation(scheme, options, kind, attn_factor, listed, tmp_path) -> None:
    _, file = written(tmp_path, scheme, options)
    field = {name: field.contents() for name, field in file.fields.items()}
    assert field["llama.rope.scaling.type"] == kind
    assert field["llama.rope.scaling.attn_factor"] == pytest.approx(attn_factor, rel=1e-6)
    assert field["llama.context_length"] == FACTOR * TRAINED_LENGTH
    assert ("rope_freqs.weight" in {tensor.name for tensor in file.tensors}) == listed
    assert field.get("llama.rope.scaling.factor", FACTOR) == FACTOR


def test_weights_are_those_of_the_model(tmp_path) -> None:
    """Queries and keys with their pairs side by side, which is undone here by indices; everything else as it is."""
    model, file = written(tmp_path, "yarn", {})
    read, own = {tensor.name: tensor.data for tensor in file.tensors}, model.state_dict()
    dim = model.config.head_dim
    order = [head * dim + half * dim // 2 + m for head in range(4) for m in range(dim // 2) for half in range(2)]
    assert np.array_equal(read["blk.1.attn_q.weight"], own["model.layers.1.self_attn.q_proj.weight"].numpy()[order])
    assert np.array_equal(read["blk.0.ffn_down.weight"], own["model.layers.0.mlp.down_proj.weight"].numpy())
    assert len(read) == len(own)


def test_an_output_layer_of_its_own_is_kept_where_the_configuration_ties_it(tmp_path) -> None:
    model = patch_model(tiny_model("llama"), "yarn", factor=FACTOR)
    model.config.tie_word_embeddings = True
    export(model, tmp_path, to="gguf")
    read = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert np.array_equal(read["output.weight"], model.lm_head.weight.detach().numpy())


def test_half_precision_keeps_its_bits_and_norms_are_float32(tmp_path) -> None:
    model, file = written(tmp_path, "yarn", {}, torch.bfloat16)
    tensors = {tensor.name: tensor for tensor in file.tensors}
    value = gguf.dequantize(tensors["output.weight"].data, tensors["output.weight"].tensor_type)
    assert torch.equal(torch.tensor(value), model.lm_head.weight.detach().float())
    assert tensors["output_norm.weight"].data.dtype == np.float32


@pytest.mark.parametrize("scheme", ["alibi", "rerope", "longrope", "dynamic_ntk", "yarn+logn"])
def test_what_is_no_fixed_rotation_is_refused(scheme: str, tmp_path) -> None:
    model = patch_model(tiny_model("llama"), scheme, factor=FACTOR)
    with pytest.raises(NotExpressible):
        export(model, tmp_path, to="gguf")
    assert not list(tmp_path.iterdir())


def test_other_models_are_refused(tmp_path) -> None:
    with pytest.raises(NotExpressible, match="not a causal Llama"):
        export(patch_model(tiny_model("gpt2"), "rope", factor=FACTOR), tmp_path, to="gguf")
    with pytest.raises(NotPatched):
        export(tiny_model("llama"), tmp_path, to="gguf")


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """GPT-2's way to split, over bytes and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "t")]
    names = ["<|end|>", *alphabet, *("".join(pair) for pair in merges)]
    backend = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def test_the_tokenizer_is_carried(tmp_path) -> None:
    tokenizer = byte_level_tokenizer()
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=32, vocab_size=300
    )
    model = patch_model(LlamaForCausalLM(config), "yarn", factor=FACTOR)
    export(model, tmp_path, to="gguf", tokenizer=tokenizer)
    field = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "model.gguf").fields.items()}
    assert field["tokenizer.ggml.pre"] == "gpt-2"
    assert field["tokenizer.ggml.tokens"][: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert len(field["tokenizer.ggml.tokens"]) == 300
    assert field["tokenizer.ggml.merges"][2] == "he ll"
    assert field["tokenizer.ggml.eos_token_id"] == tokenizer.eos_token_id == 0


def test_a_tokenizer_that_splits_otherwise_is_left_out_aloud(tmp_path) -> None:
    model, tokenizer = load_starter("llama")
    with pytest.warns(TokenizerLeftOut):
        export(patch_model(model, "yarn", factor=FACTOR), tmp_path, to="gguf", tokenizer=tokenizer)
    assert "tokenizer.ggml.tokens" not in gguf.GGUFReader(tmp_path / "model.gguf").fields


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "options"), [(case[0], case[1]) for case in CASES], ids=str)
def test_llama_cpp_itself(scheme: str, options: dict[str, Any], tmp_path) -> None:
    """At four times the trained length, in float32, cache included."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (it has to be compiled)")
    model, _ = written(tmp_path, scheme, options)
    there = llama_cpp.Llama(
        str(tmp_path / "model.gguf"), n_ctx=256, n_batch=256, logits_all=True, verbose=False, flash_attn=False,
        type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32,
    )  # fmt: skip
    there.eval(TEXT[0].tolist())
    scores = torch.tensor(np.array(there.scores[: TEXT.shape[1]]))
    # 1e-4: two float32 implementations of logits of about 1 to 4.
    assert torch.allclose(scores, model(TEXT).logits[0], atol=1e-4)
    assert not torch.allclose(scores, tiny_model("llama")(TEXT).logits[0], atol=0.1) or scheme == "rope"
