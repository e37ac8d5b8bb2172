"""Plain checkpoints: what transformers computes from them without this package is what the patched model computes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from hf_posenc import export_native, patch_model
from hf_posenc.errors import NotExpressible, NotPatched
from hf_posenc.laws.hosts import TRAINED, host

EXPRESSIBLE = [
    ("rope", {"base": 500.0}), ("abf", {}), ("pi", {}), ("ntk", {}), ("ntk_parts", {}), ("yarn", {}),
    ("yarn", {"beta_fast": 16.0, "truncate": False, "attention_factor": 1.3}), ("llama3", {}),
    ("proportional", {"p": 0.5}),
]  # fmt: skip
TEXT = torch.randint(3, 96, (1, 3 * TRAINED), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("scheme", "options"), EXPRESSIBLE, ids=str)
def test_plain_transformers_computes_the_same(scheme: str, options: dict, tmp_path) -> None:
    model = patch_model(host("llama"), scheme, factor=4, **options)
    parameters = export_native(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "position_scheme" not in config
    assert config["max_position_embeddings"] == 4 * TRAINED
    assert config["rope_parameters"]["rope_type"] == parameters["rope_type"]
    plain = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        apart = (plain(TEXT).logits - model(TEXT).logits).abs().max()
        assert apart < 1e-4  # frequencies are float32 there, float64 here
        assert (host("llama")(TEXT).logits - model(TEXT).logits).abs().max() > 100 * 1e-4  # control


def test_without_the_package(tmp_path) -> None:
    model = patch_model(host("llama"), "yarn", factor=4)
    export_native(model, tmp_path / "plain")
    code = (
        "import sys, torch; sys.modules['hf_posenc'] = None\n"
        "from safetensors.torch import load_file, save_file\n"
        "from transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1] + '/plain').eval()\n"
        "text = load_file(sys.argv[1] + '/text.safetensors')['text']\n"
        "save_file({'logits': model(text).logits.detach()}, sys.argv[1] + '/logits.safetensors')\n"
    )
    save_file({"text": TEXT}, tmp_path / "text.safetensors")
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, timeout=300)
    with torch.no_grad():
        assert (load_file(tmp_path / "logits.safetensors")["logits"] - model(TEXT).logits).abs().max() < 1e-4


@pytest.mark.parametrize("scheme", ["alibi", "self_extend", "yarn+logn", "longrope", "dynamic_ntk", "xpos", "sinks"])
def test_what_transformers_cannot_say_is_refused(scheme: str, tmp_path) -> None:
    model = patch_model(host("llama"), scheme, factor=4)
    with pytest.raises(NotExpressible, match="save_pretrained"):
        export_native(model, tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


@pytest.mark.parametrize("options", [{"layout": "interleaved"}, {"rotary_dim": 8}, {"on_v": True}])
def test_options_that_change_the_rotation_are_seen(options: dict, tmp_path) -> None:
    with pytest.raises(NotExpressible):
        export_native(patch_model(host("llama"), "rope", factor=4, **options), tmp_path / "plain")


def test_layers_and_unpatched_models(tmp_path) -> None:
    with pytest.raises(NotExpressible):
        export_native(patch_model(host("llama"), "pi", factor=4, layers={"1": "none"}), tmp_path)
    with pytest.raises(NotPatched):
        export_native(host("llama"), tmp_path)
