"""The Llama recipes of ``examples/`` run at a small size, resume, and write their results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
pytest.importorskip("matplotlib", reason="plots need the extra `plot`")

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
FACTOR, SMALL = 2, ("--factor", "2", "--steps", "2", "--batch", "1", "--save-every", "1", "--eval-every", "2")


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, EXAMPLES / script, *words], capture_output=True, text=True, check=False)


def test_two_seeds_of_lora_and_the_way_back_to_the_adapter(tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("def double(number):\n    return 2 * number\n\n\n" * 400)
    files = ("--text", str(text), "--held-out", str(text))
    done = run("finetune_lora.py", *SMALL, *files, "--seeds", "0", "1", "--output", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "| 512 (2×) |" in done.stdout
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [row["length"] for row in results["rows"]] == [256, 512]
    assert [len(curve) for curve in results["curves"]] == [3, 3]  # before, and after each step
    assert results["rows"][0]["spread"] > 0
    assert (tmp_path / "run" / "curve.png").stat().st_size > 10_000
    again = run("finetune_lora.py", *SMALL, *files, "--seeds", "0", "1", "--output", str(tmp_path / "run"))
    assert again.returncode == 1
    assert "Continue it with resume=True" in again.stderr
    from hf_posenc import describe, from_pretrained
    from hf_posenc.starters import loading

    adapted = from_pretrained(loading.starter_path("llama"), peft_adapter=tmp_path / "run" / "seed-1")
    assert describe(adapted).scheme == "dca"


@pytest.mark.parametrize(("recipe", "scheme"), [("pose", "yarn+pose"), ("drope", "drope")])
def test_recipes_that_train_at_the_trained_length(recipe, scheme, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("def double(number):\n    return 2 * number\n\n\n" * 400)
    words = ["finetune", "--model", "starter:llama", "--recipe", recipe, *SMALL, "--text", str(text)]
    command = [sys.executable, "-m", "hf_posenc.cli", *words, "--held-out", str(text), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["length"] == 256
    assert kept["scheme"]["target_length"] == FACTOR * 256
    assert "+".join(part["name"] for part in kept["scheme"]["scheme"]) == scheme


def test_the_help_names_the_script() -> None:
    shown = run("finetune_lora.py", "--help")
    assert "python examples/finetune_lora.py" in shown.stdout
    assert "(default: " in shown.stdout
