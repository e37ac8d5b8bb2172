"""The package alone, without extras, patches, saves and loads: what it imports for that, it depends on."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("tomllib is of Python 3.11", allow_module_level=True)
import tomllib

ROOT = Path(__file__).parents[2]
SESSION = """
import sys, tempfile
from hf_posenc import check_scheme, enable_auto, from_pretrained, list_schemes, load_starter, patch_model, unpatch_model
for kind in ("llama", "gpt2", "bert"):
    model, tokenizer = load_starter(kind)
    str(patch_model(model, "alibi"))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        from_pretrained(folder)
    unpatch_model(model)
for name, module in sorted(sys.modules.items()):
    if name.split(".")[0] == "hf_posenc" and getattr(module, "__file__", None):
        print(module.__file__)
"""
BROUGHT = {"numpy", "huggingface_hub", "tokenizers", "typing_extensions", "click"}
"""Comes with transformers, torch or typer."""


def imported(file: str) -> Iterator[str]:
    """Packages that a module imports when it is imported itself."""
    for statement in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Import):
            yield from (name.name.split(".")[0] for name in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            yield statement.module.split(".")[0]


@pytest.mark.slow
def test_every_import_is_a_dependency() -> None:
    run = subprocess.run([sys.executable, "-c", SESSION], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    files = run.stdout.split()
    found = {name: file for file in files for name in imported(file) if name not in sys.stdlib_module_names}
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {line.split(">")[0].split("=")[0].strip().replace("-", "_") for line in stated}
    assert {"torch", "transformers"} <= set(found), "control"
    assert len(files) > 100
    missing = {name: file for name, file in found.items() if name not in names | BROUGHT | {"hf_posenc"}}
    assert not missing
