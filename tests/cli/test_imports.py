"""``--import FILE``: a scheme in one file of the user's own, by its name in every command."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.cli.next_commands import command
from hf_posenc.core import plugin_files
from hf_posenc.schemes import registry

from .conftest import Call

SCHEME = '''
from own_helper import STEEPNESS

from hf_posenc.extend import Geometry, KeyBias, PositionContext, Scheme, register_scheme


@register_scheme("own_slope", paper="2108.12409")
class OwnSlope(Scheme):
    """A slope of one's own."""

    formula = r"s \\, j"

    def bias(self, ctx: PositionContext) -> KeyBias:
        slope = ctx.constant((STEEPNESS,) * self.geometry.heads)
        return KeyBias(slope[None, :, None] * ctx.exact(ctx.key_positions)[:, None])
'''


UNTYPED = """
from hf_posenc.extend import Scheme, register_scheme


@register_scheme("untyped")
class Untyped(Scheme):
    \"\"\"Its option has no type.\"\"\"

    def __init__(self, geometry, *, slope=1.0):
        super().__init__(geometry)
"""


@pytest.fixture
def own_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file with a scheme, beside a module that it imports; forgotten after the test."""
    (tmp_path / "own_helper.py").write_text("STEEPNESS = 0.01\n")
    (tmp_path / "own_slope_file.py").write_text(SCHEME)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(plugin_files, "_IMPORTED", {})
    yield str(tmp_path / "own_slope_file.py")
    for name in ("own_helper", "own_slope_file"):
        sys.modules.pop(name, None)
    registry._SCHEMES.pop("own_slope", None)
    registry._CLASSES.pop("own_slope", None)


@pytest.mark.parametrize("last", [True, False])
def test_a_scheme_of_ones_own_is_known_by_name(call: Call, own_scheme: str, *, last: bool) -> None:
    words, imported = ["info", "own_slope", "--json"], ["--import", own_scheme]
    answer = call(*words, *imported) if last else call(*imported, *words)
    assert answer.code == 0, answer.err
    assert answer.data["name"] == "own_slope"


def test_it_is_not_known_without(call: Call, own_scheme: str) -> None:
    """Control."""
    answer = call("info", "own_slope")
    assert answer.code == 2
    assert "--import FILE" in answer.err


def test_the_printed_commands_import_it_again(call: Call, own_scheme: str, small_llama: Path, tmp_path: Path) -> None:
    answer = call(
        *("compare", "--model", str(small_llama), "--schemes", "unpatched,own_slope", f"--import={own_scheme}"),
        *("--lengths", "128", "--tasks", "posenc_ppl", "--samples", "2", "--out", str(tmp_path / "out"), "--json"),
    )
    assert answer.code == 0, answer.err
    said = json.dumps(answer.data)
    assert f"hf-posenc --import {own_scheme} compare" in said
    assert shlex.split(command("eval", small_llama))[:3] == ["hf-posenc", "--import", own_scheme]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("own_absent.py", None, "no Python file"),
        ("own_text.txt", "", "no Python file"),
        ("own-dashes.py", "", "Rename the file"),
        ("json.py", "", "Rename the file"),
        ("own_broken.py", "raise KeyError('lost')", "KeyError: 'lost'"),
        ("own_syntax.py", "def", "SyntaxError"),
        ("own_exit.py", "import sys; sys.exit(0)", "SystemExit: 0"),
        ("lm_eval.py", "", "Rename the file"),  # installed, and loaded later
        ("own_untyped.py", UNTYPED, "Option 'slope' of Untyped has no type"),
    ],
)
def test_a_file_that_cannot_be_imported(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | None, said: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    if content is not None:
        (tmp_path / name).write_text(content)
    answer = call("list", "--import", str(tmp_path / name))
    assert answer.code == 2
    assert said in answer.err
    assert plugin_files.imported_files() == ()


def test_the_option_needs_a_file(call: Call) -> None:
    answer = call("list", "--import")
    assert answer.code == 2
    assert "takes a Python file" in answer.err


def test_a_file_is_imported_once_however_it_is_named(call: Call, own_scheme: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(Path(own_scheme).parent)
    assert call("info", "own_slope", "--import", own_scheme, "--import", Path(own_scheme).name).code == 0


TUNE = [
    "--scheme",
    "own_slope",
    "--target",
    "0.5k",
    "--set",
    "length=64",
    "--set",
    "eval_lengths=64",
    "--set",
    "rank=2",
]
TUNE += ["--text", "own.txt", "--set", "eval_windows=2", "--import", "own_slope_file.py"]


def forget(monkeypatch: Any) -> None:
    """As in another process."""
    monkeypatch.setattr(plugin_files, "_IMPORTED", {})
    for name in ("own_helper", "own_slope_file"):
        sys.modules.pop(name, None)
    registry._SCHEMES.pop("own_slope")
    registry._CLASSES.pop("own_slope", None)


def test_a_run_is_repeated_from_its_file_with_the_scheme_in_another(
    call: Call, own_scheme: str, small_llama: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """From another folder, too; and the adapter's card says what to import."""
    pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
    (tmp_path / "own.txt").write_text("the cat sat on the mat. " * 400)
    monkeypatch.chdir(tmp_path)
    first = call("finetune", "--model", str(small_llama), *TUNE, "--steps", "1", "--out", "run", "--json")
    assert first.code == 0, first.err
    assert "import own_slope_file  # registers own_slope" in (tmp_path / "run" / "README.md").read_text()
    forget(monkeypatch)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = call("finetune", "--config", "../run/config.yaml", "--out", "again", "--json")
    assert again.code == 0, again.err
    assert again.data["curve"] == first.data["curve"]


@pytest.mark.parametrize("edited", [True, False])
def test_a_run_is_not_resumed_with_another_formula(
    call: Call, own_scheme: str, small_llama: Path, tmp_path: Path, monkeypatch: Any, *, edited: bool
) -> None:
    pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
    (tmp_path / "own.txt").write_text("the cat sat on the mat. " * 400)
    monkeypatch.chdir(tmp_path)
    words = ["finetune", "--model", str(small_llama), *TUNE, "--out", "run", "--json"]
    first = call(*words, "--steps", "1")
    assert first.code == 0, first.err
    forget(monkeypatch)
    if edited:
        Path(own_scheme).write_text(SCHEME.replace("* ctx.exact", "* 2.0 * ctx.exact"))
        importlib.invalidate_caches()
    again = call(*words, "--steps", "2", "--resume")
    assert (again.code == 0) != edited, again.err
    assert ("another code of the scheme" in again.err) == edited
