"""Checkpoints of earlier versions load with the same scheme and the same logits, to the last digits of float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_posenc import from_pretrained, patch_model, unpatch_model
from hf_posenc.errors import CheckpointMismatch
from hf_posenc.schemes.registry import built_in_records

CHECKPOINTS = Path(__file__).parent / "v1"
ANSWER = "answer.safetensors"
LIMIT = 1e-5
"""Of the largest logit. Another processor adds in another order: 1.1e-6 between the instruction sets of one machine."""
LARGEST = 20 << 10
SCHEMES = sorted(folder.name for folder in CHECKPOINTS.iterdir())


def test_every_scheme_has_a_golden_checkpoint() -> None:
    built_in = {record["name"] for record in built_in_records()}
    assert built_in <= set(SCHEMES), "run tests/golden/write.py"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_outputs_equal_the_stored_ones(scheme: str, tmp_path: Path) -> None:
    folder = CHECKPOINTS / scheme
    assert sum(file.stat().st_size for file in folder.iterdir()) <= LARGEST
    answer = load_file(folder / ANSWER)
    model = from_pretrained(folder, dtype=torch.float32).eval()
    torch.manual_seed(0)  # as when it was written
    with torch.no_grad():
        logits = model(answer["ids"]).logits
    scale = answer["logits"].abs().max().item()
    assert scale > 0.1, "control: there is something to compare"
    assert (logits - answer["logits"]).abs().max().item() <= LIMIT * scale
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))["position_scheme"]
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["position_scheme"] == stored


def test_control_the_scheme_changes_the_outputs() -> None:
    """Control: under another scheme the same weights say something else."""
    answer = load_file(CHECKPOINTS / "alibi" / ANSWER)
    model = patch_model(unpatch_model(from_pretrained(CHECKPOINTS / "alibi", dtype=torch.float32)), "yarn", factor=4)
    with torch.no_grad():
        deviation = (model.eval()(answer["ids"]).logits - answer["logits"]).abs().max()
    assert deviation > 1e3 * LIMIT * answer["logits"].abs().max()


@pytest.mark.parametrize("version", [0, 2, 1.5, "1", None])
def test_another_format_is_refused(version: object, tmp_path: Path) -> None:
    """What a later version writes, and what none ever wrote."""
    shutil.copytree(CHECKPOINTS / "yarn", tmp_path / "yarn")
    file = tmp_path / "yarn" / "config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["position_scheme"]["format"] = version
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointMismatch, match="format"):
        from_pretrained(tmp_path / "yarn")
