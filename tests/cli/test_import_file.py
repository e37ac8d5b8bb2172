"""``--import FILE``: a scheme in one file of the user's own, by its name in every command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_posenc.cli.commands.finetune_result import command
from hf_posenc.core import plugins
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


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process."""
    monkeypatch.setattr(plugins, "_IMPORTED", {})
    for name in ("own_helper", "own_slope_file"):
        sys.modules.pop(name, None)
    registry._SCHEMES.pop("own_slope", None)
    registry._CLASSES.pop("own_slope", None)


@pytest.fixture
def own_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file with a scheme, beside a module that it imports; forgotten after the test."""
    (tmp_path / "own_helper.py").write_text("STEEPNESS = 0.01\n")
    (tmp_path / "own_slope_file.py").write_text(SCHEME)
    monkeypatch.setattr(sys, "path", list(sys.path))
    forget(monkeypatch)
    yield str(tmp_path / "own_slope_file.py")
    forget(monkeypatch)


@pytest.mark.parametrize("last", [True, False])
def test_a_scheme_of_ones_own_is_known_by_name(call: Call, own_scheme: str, small_llama: Path, *, last: bool) -> None:
    unknown = call("info", "own_slope")
    assert unknown.code == 2, "control: without the file"
    assert "--import FILE" in unknown.err
    words, imported = ["info", "own_slope", "--json"], ["--import", own_scheme]
    answer = call(*words, *imported) if last else call(*imported, *words)
    assert answer.code == 0, answer.err
    assert answer.data["name"] == "own_slope"
    assert f"hf-posenc --import {own_scheme} eval" in command("eval", small_llama), "printed commands import it again"


@pytest.mark.parametrize("documented", [True, False])
def test_the_formula_of_ones_own_scheme_is_shown(call: Call, own_scheme: str, *, documented: bool) -> None:
    """Without a docstring as well, in place of that of `Scheme`; of a scheme of the package, its text has it."""
    if not documented:
        Path(own_scheme).write_text(SCHEME.replace('"""A slope of one\'s own."""', ""))
    shown = call("info", "own_slope", "--import", own_scheme).out
    assert r"s \, j" in shown
    assert ("A slope of one's own." in shown) == documented
    assert "A positional scheme: how positions enter" not in shown
    assert r"\omega" not in call("info", "yarn").out


@pytest.mark.parametrize(("paper", "entry"), [("2108.12409", "@inproceedings{press2022"), ("2999.00001", ""), ("", "")])
def test_the_package_is_not_cited_for_a_scheme_of_ones_own(call: Call, own_scheme: str, paper: str, entry: str) -> None:
    Path(own_scheme).write_text(SCHEME.replace("2108.12409", paper))
    shown = call("info", "own_slope", "--bibtex", "--import", own_scheme).out
    assert "hf_posenc," not in shown
    assert (entry in shown) if entry else shown.startswith("% own_slope: ") and "no citation" in shown
    assert paper in shown
    assert "hf_posenc," in call("info", "host", "--bibtex").out, "control: a scheme of the package without a paper"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("own_absent.py", None, "no Python file"),
        ("own-dashes.py", "", "Rename the file"),
        ("json.py", "", "Rename the file"),
        ("own_broken.py", "raise KeyError('lost')", "KeyError: 'lost'"),
        ("own_exit.py", "import sys; sys.exit(0)", "SystemExit: 0"),
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
    assert call("list", "--import").code == 2


@pytest.mark.slow
@pytest.mark.parametrize("edited", [True, False])
def test_a_run_is_repeated_and_resumed_with_the_same_formula_only(
    call: Call, own_scheme: str, small_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, edited: bool
) -> None:
    pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
    (tmp_path / "own.txt").write_text("the cat sat on the mat. " * 400)
    monkeypatch.chdir(tmp_path)
    words = ["finetune", "--model", str(small_llama), "--scheme", "own_slope", "--target-length", "0.5k"]
    words += ["--set", "length=64", "--set", "eval_lengths=64", "--set", "rank=2", "--set", "eval_windows=2"]
    words += ["--text", "own.txt"]
    words += ["--import", "own_slope_file.py", "--out", "run", "--json"]
    first = call(*words, "--steps", "1")
    assert first.code == 0, first.err
    assert "import own_slope_file  # registers own_slope" in (tmp_path / "run" / "README.md").read_text()
    forget(monkeypatch)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = call("finetune", "--config", "../run/config.yaml", "--out", "again", "--json")
    assert again.data["curve"] == first.data["curve"]
    monkeypatch.chdir(tmp_path)
    forget(monkeypatch)
    if edited:
        Path(own_scheme).write_text(SCHEME.replace("* ctx.exact", "* 2.0 * ctx.exact"))
        importlib.invalidate_caches()
    resumed = call(*words, "--steps", "2", "--resume")
    assert (resumed.code == 0) != edited, resumed.err
