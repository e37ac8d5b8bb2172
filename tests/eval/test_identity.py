"""Digests change with everything that can change a number, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_posenc import patch_model, unpatch_model
from hf_posenc.checkpoints.model_digest import model_digest
from hf_posenc.eval.comparison.identity import files_digest, tokenizer_digest
from hf_posenc.eval.texts.measured_text import measured_text


@pytest.fixture
def large() -> LlamaForCausalLM:
    """Its embeddings take a megabyte."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2
    )
    return LlamaForCausalLM(config)


@torch.no_grad()
def bump(tensor: torch.Tensor, share: float) -> None:
    """The smallest change there is, in one number of a tensor."""
    flat = tensor.view(-1)
    index = min(int(share * flat.numel()), flat.numel() - 1)
    flat[index] = torch.nextafter(flat[index], torch.tensor(torch.inf, dtype=flat.dtype))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_every_number_of_every_weight_counts(large: Any, share: float) -> None:
    before = model_digest(large)
    for name, tensor in large.state_dict().items():
        kept = tensor.clone()
        bump(tensor, share)
        assert model_digest(large) != before, name
        tensor.copy_(kept)
    assert model_digest(large) == before  # control, and that nothing else went into it


def swapped(model: Any) -> None:
    one, two = (model.model.layers[0].self_attn.k_proj, model.model.layers[0].self_attn.v_proj)
    one.weight.data, two.weight.data = two.weight.data, one.weight.data


def another_shape(model: Any) -> None:
    weight = model.model.layers[0].self_attn.q_proj.weight
    weight.data = weight.data.view(32, 128)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "weights in each other's place": swapped,
    "a weight of another shape": another_shape,
    "another base of the rotation": lambda model: model.config.rope_parameters.update(rope_theta=5e5),
    "another epsilon": lambda model: setattr(model.config, "rms_norm_eps", 1e-5),
    "another length": lambda model: setattr(model.config, "max_position_embeddings", 4096),
    "a scheme": lambda model: patch_model(model, "yarn", factor=2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_number_changes_the_digest(large: Any, change: str) -> None:
    before = model_digest(large)
    CHANGES[change](large)
    assert model_digest(large) != before


def test_what_changes_none_does_not(large: Any) -> None:
    before = model_digest(large)
    large.config._name_or_path = "somewhere/else"
    large.config.transformers_version = "5.0.0"
    assert model_digest(large) == before
    unpatch_model(patch_model(large, "yarn", factor=2))
    assert model_digest(large) == before


def test_a_tokenizer_is_what_it_makes_of_text(tokenizer, framed_tokenizer) -> None:
    import copy

    assert tokenizer_digest(copy.deepcopy(tokenizer)) == tokenizer_digest(tokenizer)
    assert tokenizer_digest(framed_tokenizer) != tokenizer_digest(tokenizer)
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["zyxw"])
    assert tokenizer_digest(other) != tokenizer_digest(tokenizer)
    other = copy.deepcopy(tokenizer)
    other.eos_token = "t"
    assert tokenizer_digest(other) != tokenizer_digest(tokenizer)


def test_training_leaves_a_tokenizer_what_it_is(tokenizer, tmp_path) -> None:
    """Trainers pad and cut texts, and set a token for it; saved and loaded, all that is still there."""
    import copy

    from transformers import AutoTokenizer

    used = copy.deepcopy(tokenizer)
    used.add_special_tokens({"pad_token": "[PAD]"})
    used(["one", "of two"], padding=True, truncation=True, max_length=8)
    used.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.backend_tokenizer.to_str() != tokenizer.backend_tokenizer.to_str()  # control
    assert tokenizer_digest(loaded) == tokenizer_digest(used) == tokenizer_digest(tokenizer)


@pytest.mark.parametrize("share", [0, 5000, -1])
def test_every_byte_of_a_text_counts(tmp_path, share: int) -> None:
    content = bytearray(b"a" * 10_000)
    (tmp_path / "text").write_bytes(content)
    before = measured_text(tmp_path / "text").digest
    content[share] = ord("b")
    (tmp_path / "text").write_bytes(content)
    digest = measured_text(tmp_path / "text").digest
    assert digest != before
    assert measured_text(str(tmp_path / "text")).digest == digest


def test_a_folder_is_its_names_and_contents(tmp_path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.yaml").write_text("1")
    (tmp_path / "deep" / "b.py").write_text("2")
    (tmp_path / "c.txt").write_text("3")
    chosen = (".yaml", ".py")
    before = files_digest(tmp_path, chosen)
    (tmp_path / "c.txt").write_text("4")
    (tmp_path / "deep" / "__pycache__").mkdir()
    (tmp_path / "deep" / "__pycache__" / "b.py").write_text("5")
    assert files_digest(tmp_path, chosen) == before
    (tmp_path / "deep" / "b.py").write_text("6")
    changed = files_digest(tmp_path, chosen)
    (tmp_path / "deep" / "b.py").rename(tmp_path / "deep" / "d.py")
    assert len({before, changed, files_digest(tmp_path, chosen), files_digest(tmp_path)}) == 4
