"""Models exported as other classes of transformers, which plain transformers reads in a process of its own."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from hf_posenc import describe, export, load_starter, patch_model
from hf_posenc.checkpoints import gpt2_classes, other_class
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import AlreadyScaled, NotExpressible
from hf_posenc.schemes.mask.window import Window

TEXT = torch.randint(3, 96, (1, 3 * TRAINED_LENGTH), generator=torch.Generator().manual_seed(0))
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("window", {"size": 16}, "mistral", {"sliding_window": 16}),
    ("yarn+window", {"size": 20}, "mistral", {"sliding_window": 20}),
    ("irope", {}, "smollm3", {"no_rope_layers": [1, 0]}),
    ("drope", {"keep_layers": [0]}, "smollm3", {"no_rope_layers": [1, 0]}),
    ("yarn", {}, "llama", {}),
]
GPT2: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("alibi", {}, "bloom", {"hidden_size": 64}),
    ("rope", {}, "gpt_neox", {"use_parallel_residual": False}),
    ("yarn", {}, "gpt_neox", {"max_position_embeddings": 4 * TRAINED_LENGTH}),
    ("ntk_parts_v1", {}, "gpt_neox", {}),
    ("partial", {}, "gpt_neox", {}),
    ("none", {}, "gpt_neox", {}),
    ("learned_interp", {}, "gpt2", {"n_positions": 4 * TRAINED_LENGTH}),
    ("sinusoidal", {}, "gpt2", {"position_trained_length": TRAINED_LENGTH}),
]


def patched(scheme: str, options: dict[str, Any], family: str = "llama") -> Any:
    """With norms, biases and embeddings that are not those of a fresh model."""
    model = tiny_model(family)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or "ln_" in name or "bias" in name:
                weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return patch_model(model, scheme, **({"factor": 4} | options))


OLD = Version(version("transformers")) < Version("5.5")
"""5.4 names the output layer of GPT-NeoX otherwise, and rotates a quarter of a head whatever is stated: refused."""


@pytest.mark.parametrize(
    ("family", "scheme", "options", "kind", "entries"),
    [("llama", *case) for case in CASES] + [("gpt2", *case) for case in GPT2],
)
def test_the_class_and_its_logits(
    family: str, scheme: str, options: dict[str, Any], kind: str, entries: dict[str, Any],
    tmp_path: Path, monkeypatch: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr(other_class, "check_alone", lambda *_: None)  # a process each; the slow test has it
    model = patched(scheme, options, family)
    if kind == "gpt_neox" and OLD:
        with pytest.raises(NotExpressible):
            export(model, tmp_path / "plain", to="auto")
        return
    export(model, tmp_path / "plain", to="auto")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["model_type"] == kind
    assert entries.items() <= config.items()
    there = AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
    assert torch.allclose(there(TEXT).logits, model(TEXT).logits, atol=1e-4)  # two float32 ways to logits of about 1
    other = torch.cat((TEXT[:, :-8], TEXT[:, -8:-4].flip(1), TEXT[:, -4:]), dim=1)  # a control: order counts
    assert not torch.allclose(there(other).logits[:, -1], there(TEXT).logits[:, -1], atol=1e-4)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [("alibi", {}), ("window", {"sinks": 2}), ("drope", {"keep_layers": [0], "softmax_scale": 1.2}), ("rerope", {})],
)
def test_what_no_class_computes_is_refused(scheme: str, options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NotExpressible):
        export(patched(scheme, options), tmp_path / "plain", to="auto")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("scheme", "options", "changed", "named"),
    [
        ("fire", {}, {}, "computes scheme 'fire'"),  # not that layers lack it: each has parameters of its own
        ("norm01", {}, {}, "'norm01'"),
        ("irope", {}, {}, "irope"),
        ("xpos", {}, {}, "'xpos'"),
        ("alibi", {"bias_max": 4.0}, {}, "slopes"),
        ("alibi", {}, {"n_inner": 96}, "n_inner=96"),
        ("alibi", {}, {"activation_function": "relu"}, "'relu'"),
        ("rope", {}, {"scale_attn_by_inverse_layer_idx": True}, "layer_idx=True"),
    ],
)
def test_a_gpt2_is_refused_by_its_part(
    scheme: str, options: dict[str, Any], changed: dict[str, Any], named: str, tmp_path: Path
) -> None:
    config = GPT2Config(n_embd=32, n_head=2, n_layer=2, n_positions=TRAINED_LENGTH, vocab_size=96, **changed)
    model = patch_model(GPT2LMHeadModel(config).eval(), scheme, factor=4, **options)
    with pytest.raises(NotExpressible, match=named):
        export(model, tmp_path / "plain", to="auto")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scheme", ["host", "learned"])
def test_a_table_that_is_kept_is_written_as_it_is(scheme: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(other_class, "check_alone", lambda *_: None)
    model = patch_model(tiny_model("gpt2"), scheme)
    export(model, tmp_path / "plain", to="auto")
    there = GPT2LMHeadModel.from_pretrained(tmp_path / "plain").eval()
    assert torch.equal(there(TEXT[:, :TRAINED_LENGTH]).logits, model(TEXT[:, :TRAINED_LENGTH]).logits)


def test_a_longer_table_says_what_the_weights_were_trained_on(tmp_path: Path, monkeypatch: Any) -> None:
    """Rotations count from that; what reads the table counts from its rows, which are the positions by now."""
    monkeypatch.setattr(other_class, "check_alone", lambda *_: None)
    export(patched("learned_interp", {}, "gpt2"), tmp_path / "once", to="auto")
    with pytest.raises(AlreadyScaled, match=f"trained_length={TRAINED_LENGTH}"):
        patch_model(AutoModelForCausalLM.from_pretrained(tmp_path / "once"), "yarn", factor=2)
    model = patch_model(AutoModelForCausalLM.from_pretrained(tmp_path / "once"), "learned_interp", factor=2)
    assert describe(model).trained_length == 4 * TRAINED_LENGTH
    export(model, tmp_path / "twice", to="auto")
    config = json.loads((tmp_path / "twice" / "config.json").read_text())
    assert (config["position_trained_length"], config["n_positions"]) == (TRAINED_LENGTH, 8 * TRAINED_LENGTH)


def test_a_bloom_in_half_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotExpressible, match="bfloat16"):
        export(patched("alibi", {}, "gpt2").to(torch.bfloat16), tmp_path / "plain", to="auto")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "scheme"), [("llama", "yarn+window"), ("gpt2", "alibi"), ("gpt2", "learned")])
def test_it_is_read_without_this_package(family: str, scheme: str, tmp_path: Path) -> None:
    options = {"yarn+window": {"size": 20}, "learned": {"factor": 1}}.get(scheme, {})
    export(patched(scheme, options, family), tmp_path / "plain", to="auto")
    assert (tmp_path / "plain" / "model.safetensors").exists()


@pytest.mark.slow
def test_rounding_is_no_difference(tmp_path: Path) -> None:
    """bfloat16 rounds logits of the starter by more than a tenth of their deviation."""
    model = patch_model(load_starter("llama")[0].to(torch.bfloat16), "window", factor=2, size=64)
    export(model, tmp_path / "plain", to="auto")
    assert model.dtype == AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype="auto").dtype == torch.bfloat16


@pytest.mark.slow
def test_dropout_is_no_difference(tmp_path: Path) -> None:
    model = patched("yarn", {}, "gpt2").train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    export(model, tmp_path / "plain", to="auto")
    assert all(module.training for module in model.modules())


@pytest.mark.slow
def test_embeddings_that_a_bloom_normalises_leave_nothing_behind(tmp_path: Path, monkeypatch: Any) -> None:
    """A control: embeddings as large as they are, which BLOOM's first norm changes."""
    monkeypatch.setattr(gpt2_classes, "GROWN", 1.0)
    with pytest.raises(NotExpressible, match="other logits"):
        export(patched("alibi", {}, "gpt2"), tmp_path / "plain", to="auto")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_logits_leave_nothing_behind(dtype: torch.dtype, tmp_path: Path, monkeypatch: Any) -> None:
    """A control: the window is written one key too wide."""
    monkeypatch.setattr(Window, "native_window", lambda self: self.size + 1)
    with pytest.raises(NotExpressible, match=r"other logits .* \(32 tokens\)"):
        export(patched("window", {"size": 16}).to(dtype), tmp_path / "plain", to="auto")
    assert not list(tmp_path.iterdir())
