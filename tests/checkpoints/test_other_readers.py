"""What is said at export where another program reads the configuration otherwise than transformers."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posenc import export_native, patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import ReadOtherwise

FACTOR = 4
TARGET = FACTOR * TRAINED_LENGTH
SAID: list[tuple[str, dict[str, Any]]] = [("pi", {}), ("proportional", {"p": 0.5}), ("yarn", {"truncate": False})]
SILENT: list[tuple[str, dict[str, Any]]] = [("yarn", {}), ("ntk", {}), ("llama3", {}), ("dynamic_ntk", {}), ("abf", {})]


def exported(folder: Path, scheme: str, options: dict[str, Any], **entries: Any) -> tuple[dict[str, Any], list[str]]:
    """What is in ``config.json``, and what was said of other programs."""
    model: Any = tiny_model("llama")
    vars(model.config).update(entries)
    patch_model(model, scheme, factor=FACTOR, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        export_native(model, folder)
    said = [str(one.message) for one in caught if one.category is ReadOtherwise]
    return json.loads((folder / "config.json").read_text()), said


def length_in_vllm(config: dict[str, Any]) -> int:
    """Its rule: the smallest length that is stated, times the factor of RoPE types but three."""
    names = ("max_position_embeddings", "max_sequence_length", "model_max_length")
    length, rope = min(config[name] for name in names if name in config), config["rope_parameters"]
    if rope["rope_type"] in ("longrope", "llama3"):
        return length
    return int(rope.get("factor", 1) * rope.get("original_max_position_embeddings", length))


@pytest.mark.parametrize(("scheme", "options"), [*SAID, *SILENT], ids=str)
def test_a_longer_window_is_said(scheme: str, options: dict[str, Any], tmp_path: Path) -> None:
    if scheme == "proportional" and scheme not in ROPE_INIT_FUNCTIONS:
        pytest.skip("this transformers does not have the RoPE type")
    config, said = exported(tmp_path, scheme, options)
    read = length_in_vllm(config)
    sentence = f"texts of {read:,} tokens. Start it with --max-model-len {TARGET}."
    assert any(sentence in one for one in said) == (read > TARGET)
    assert bool(said) == ((scheme, options) in SAID)


@pytest.mark.parametrize("truncate", [True, False])
def test_the_ends_of_a_ramp_that_mlx_rounds(truncate: bool, tmp_path: Path) -> None:
    """Rounded ends are another rotation, by the formula in float64."""
    said = exported(tmp_path, "yarn", {"truncate": truncate})[1]
    read = AutoConfig.from_pretrained(tmp_path)
    there, _ = ROPE_INIT_FUNCTIONS["yarn"](read, None)
    pairs, base = len(there), read.rope_parameters["rope_theta"]

    def end(turns: float) -> float:
        return 2 * pairs * math.log(TRAINED_LENGTH / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(end(32.0)), 0), min(math.ceil(end(1.0)), 2 * pairs - 1)
    apart = 0.0
    for pair, frequency in enumerate(there.tolist()):
        slowed = min(max((pair - low) / (high - low), 0.0), 1.0)
        rounded = base ** (-pair / pairs) * (1 - slowed + slowed / FACTOR)
        apart = max(apart, abs(rounded / frequency - 1))
    assert (apart > 1e-3) == (not truncate)
    assert any("mlx-lm does not read truncate=False" in one for one in said) == (not truncate)


def test_other_entries_of_the_window_follow(tmp_path: Path) -> None:
    """A smaller one was chosen; the rotation is not read from any of them."""
    config, _ = exported(tmp_path, "yarn", {}, max_sequence_length=TRAINED_LENGTH, model_max_length=TRAINED_LENGTH)
    assert length_in_vllm(config) == TARGET == config["max_sequence_length"] == config["model_max_length"]
    config, _ = exported(tmp_path, "yarn", {}, max_sequence_length=TRAINED_LENGTH - 1)
    assert config["max_sequence_length"] == TRAINED_LENGTH - 1
