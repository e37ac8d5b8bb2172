"""Exports in a transformers before 5, which does not know ``rope_parameters``: the same logits, or an error."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hf_posenc import export, patch_model
from hf_posenc.checkpoints.old_rope_keys import old_form
from hf_posenc.errors import NotExpressible, NotReadBefore5, OnlyWithinTrainedLength

from ..families.tiny import tiny
from ..processes import finish, start
from ..small_models import edit

OLD_PYTHON = "HF_POSENC_OLD_PYTHON"
"""Path of a Python with a transformers before 5, such as 4.57.1, and torch; this package is not needed there."""
TRAINED, FACTOR = 32, 4
SCHEMES: list[tuple[str, dict[str, Any]]] = [
    ("yarn", {}), ("yarn", {"beta_fast": 16.0, "truncate": False, "attention_factor": 1.3}), ("pi", {}), ("ntk", {}),
    ("abf", {}), ("ntk_parts", {}), ("llama3", {}), ("dynamic_ntk", {}), ("longrope", {}),
]  # fmt: skip
BY_LENGTH = ("dynamic_ntk", "longrope")
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {"sliding_window": None}, "qwen3": {}, "phi": {}, "gpt_neox": {"rotary_pct": 0.5}
}  # fmt: skip
SEVERAL_KINDS: dict[str, dict[str, Any]] = {
    "smollm3": {"no_rope_layers": [1, 1, 0, 1]},
    "cohere2": {"sliding_window": 16},
    "gemma3_text": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "olmo3": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2},
}  # fmt: skip
"""Families in which some layers rotate otherwise, or not at all."""
OF_SEVERAL_KINDS = ("yarn", "pi", "llama3")
READ = """
import json, sys
from pathlib import Path
from safetensors.torch import load_file, save_file
import transformers
from transformers import AutoModelForCausalLM
assert int(transformers.__version__.partition(".")[0]) < 5, transformers.__version__
for folder in Path(".").iterdir():
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    save_file({"logits": model(load_file(folder / "ids.st")["ids"]).logits.detach()}, folder / "old.st")
"""


def skip_before_layers_had_kinds(family: str) -> None:
    if family in SEVERAL_KINDS and Version(transformers.__version__) < Version("5.12"):
        pytest.skip(f"transformers {transformers.__version__} does not make {family} of a configuration with lists")


def built(family: str) -> PreTrainedModel:
    """A random model whose scores have a spread, so that another rotation is another result."""
    skip_before_layers_had_kinds(family)
    own = (FAMILIES | SEVERAL_KINDS)[family]
    return tiny(family, num_hidden_layers=2 if family in FAMILIES else 4, max_position_embeddings=TRAINED, **own)


def written(family: str, scheme: str, options: dict[str, Any], folder: Path) -> torch.Tensor:
    """Export a tiny model with a text into ``folder``; what the patched model computes of the text."""
    model = patch_model(built(family), scheme, factor=FACTOR, **options)
    if scheme in BY_LENGTH:
        with pytest.warns(OnlyWithinTrainedLength):
            export(model, folder)
    else:
        export(model, folder)
    length = TRAINED if scheme in BY_LENGTH else FACTOR * TRAINED
    ids = torch.randint(3, 96, (1, length), generator=torch.Generator().manual_seed(0))
    save_file({"ids": ids}, folder / "ids.st")
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.slow
def test_an_older_transformers_computes_the_same(tmp_path: Path) -> None:
    python = os.environ.get(OLD_PYTHON)
    if python is None:
        pytest.skip(f"needs the path of a Python with a transformers before 5 in {OLD_PYTHON}")
    wanted = {
        f"{family}-{number}-{scheme}": written(family, scheme, options, tmp_path / f"{family}-{number}-{scheme}")
        for family in FAMILIES
        for number, (scheme, options) in enumerate(SCHEMES)
    }
    wanted |= {
        f"{family}-{scheme}": written(family, scheme, {}, tmp_path / f"{family}-{scheme}")
        for family in SEVERAL_KINDS
        for scheme in OF_SEVERAL_KINDS
    }
    without = tmp_path / "llama-without"  # control: today's form alone, as it was written before
    wanted[without.name] = written("llama", "yarn", {}, without)
    edit(without, without=("rope_theta", "rope_scaling"))
    finish(start(["-c", READ], python=python, cwd=tmp_path))
    apart = {
        name: (load_file(tmp_path / name / "old.st")["logits"] - logits).abs().max().item()
        for name, logits in wanted.items()
    }
    assert apart.pop(without.name) > 0.1
    assert max(apart.values()) < 1e-4, apart


@pytest.mark.parametrize("scheme", ["yarn", "ntk", "longrope"])
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_both_forms_are_read_as_one(family: str, scheme: str, tmp_path: Path) -> None:
    want = written(family, scheme, {}, tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    names = ("rotary_emb_base", "rotary_pct") if family == "gpt_neox" else ("rope_theta",)
    assert all(name in stored for name in names)
    assert (stored["rope_scaling"] is None) == (scheme == "ntk")
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.rope_parameters == stored["rope_parameters"]
    assert old_form(config) == {name: stored[name] for name in old_form(config)}
    with torch.no_grad():
        again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()(load_file(tmp_path / "ids.st")["ids"]).logits
    assert (again - want).abs().max() < 1e-4


@pytest.mark.parametrize("scheme", OF_SEVERAL_KINDS)
@pytest.mark.parametrize("family", SEVERAL_KINDS)
def test_each_type_of_layer_is_exported_as_it_is(family: str, scheme: str, tmp_path: Path) -> None:
    want = written(family, scheme, {}, tmp_path)
    ids = load_file(tmp_path / "ids.st")["ids"]
    with torch.no_grad():
        again, unscaled = AutoModelForCausalLM.from_pretrained(tmp_path).eval()(ids).logits, built(family)
        unscaled.load_state_dict(AutoModelForCausalLM.from_pretrained(tmp_path).state_dict())
        assert (again - want).abs().max() < 1e-4
        assert (unscaled(ids).logits - want).abs().max() > 1e-2, "control: unscaled it is another model"


def test_layers_of_one_type_that_differ_are_refused(tmp_path: Path) -> None:
    for layers in ({"0": "none"}, "all"):  # layers of Cohere 2 that it does not rotate cannot be told to
        model = patch_model(built("cohere2"), "pi", factor=FACTOR, layers=layers)
        with pytest.raises(NotExpressible, match=r"layers lack|another rotation"):
            export(model, tmp_path / "plain")
    model = patch_model(built("gemma3_text"), "longrope", factor=FACTOR)
    with pytest.raises(NotExpressible, match="types of layers rotate differently"):
        export(model, tmp_path / "plain")


@pytest.mark.parametrize(
    ("family", "scheme", "layers", "warns"),
    [("gemma3_text", "pi", "all", True), ("olmo3", "ntk", None, True), ("gemma3_text", "ntk", None, False)],
)
def test_what_older_readers_would_leave_out_is_said(
    family: str, scheme: str, layers: str | None, warns: bool, tmp_path: Path
) -> None:
    model = patch_model(built(family), scheme, factor=FACTOR, layers=layers)
    with pytest.warns(NotReadBefore5) if warns else nullcontext():
        export(model, tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert ("rope_theta" in stored) != warns


@pytest.mark.parametrize("family", ["llama4_text", "phi3"])
def test_what_a_family_reads_otherwise_is_not_exported(family: str, tmp_path: Path) -> None:
    """Llama 4 leaves the attention factor of RoPE types out; Phi-3 reads any type as ``longrope``, or raises."""
    own = {"num_hidden_layers": 2, "attention_chunk_size": 16, "no_rope_layers": [1, 0]} if family != "phi3" else {}
    for scheme in ("yarn", "pi" if family == "phi3" else "longrope"):
        model = patch_model(tiny(family, max_position_embeddings=TRAINED, **own), scheme, factor=FACTOR)
        with pytest.raises(NotExpressible):
            export(model, tmp_path / "plain")
        assert not (tmp_path / "plain").exists()
