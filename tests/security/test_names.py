"""Names that become file names stay inside their folder; files of tasks are code, and refused unless trusted."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_posenc.cli import main
from hf_posenc.core.files.paths import slug
from hf_posenc.errors import BadComparison
from hf_posenc.eval import TASKS
from hf_posenc.eval.catalogue import check_tasks
from hf_posenc.eval.errors import UntrustedTask

HOSTILE = [
    *("", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "C:\\x", "..\\..\\x", "file:///x", "~", "-rf", "*"),
    *("con", "NUL", "com1.txt", "CON.png", "x\x00y", "a\nb", "\u202egpj.exe", "\ud800", "x-0123456789ab"),
    *("é" * 300, "x" * 300, "a.", " a "),
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_stays_in_its_folder(name: str) -> None:
    """Inside, short, and no device of Windows."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, slug(name))
        assert made.resolve().parent == Path(folder).resolve()
        made.write_text("x")
    assert 1 <= len(slug(name).encode()) <= 100
    assert slug(name).isascii()
    assert not slug(name).startswith((".", "-"))
    assert not slug(name).endswith((".", " "))
    assert PureWindowsPath(slug(name)).name == slug(name)
    stem = slug(name).partition(".")[0]
    assert stem not in {"con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(10))}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet="aAbB./-_ é\x00", max_size=4), st.text(alphabet="aAbB./-_ é\x00", max_size=4))
def test_two_names_never_share_a_file(first: str, second: str) -> None:
    """Also on disks that do not tell capitals from small letters."""
    assert (slug(first).lower() == slug(second).lower()) == (first == second)


FUNCTION = "task: evil\ndataset_path: json\ndoc_to_text: !function evil.run\ndoc_to_target: x\n"
TEMPLATE = "task: evil\ndataset_path: json\ndoc_to_text: \"{{ ''.__class__.__mro__[1].__subclasses__() }}\"\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Task files, and the code that one of them names."""
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "evil.yaml").write_text(FUNCTION, encoding="utf-8")
    (tasks / "jinja.yaml").write_text(TEMPLATE, encoding="utf-8")
    code = f"open({str(tmp_path / 'marker')!r}, 'w')\ndef run(doc): return ''\n"
    (tasks / "evil.py").write_text(code, encoding="utf-8")
    return tasks


@pytest.mark.parametrize("command", ["eval", "compare"])
@pytest.mark.parametrize("name", ["evil.yaml", "jinja.yaml"])
def test_a_file_by_its_path(
    command: str, name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"eval": ["eval"], "compare": ["compare", "-s", "unpatched", "--out", str(tmp_path / "out")]}[command]
    with pytest.raises(SystemExit) as ended:
        main([*words, "-m", "starter:llama", "-t", str(folder / name), "-l", "256"])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert "There is no task" in captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "marker").exists()
    assert not (tmp_path / "out").exists()


def test_a_folder_of_tasks_runs_only_when_trusted(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UntrustedTask, match=r"can run any code.+trust_tasks"):
        check_tasks(["evil"], folder, trust=False)
    check_tasks(["evil"], folder, trust=True)
    with pytest.raises(BadComparison, match="There is no task"):
        check_tasks([str(folder / "evil.yaml")], folder, trust=True)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "x.yaml", "X.YML", "a\\b", "evil.py"])
def test_a_path_is_no_name(name: str) -> None:
    with pytest.raises(BadComparison, match="There is no task"):
        check_tasks([name], None, trust=True)


@pytest.mark.parametrize("file", sorted(TASKS.glob("*.yaml")), ids=lambda file: file.stem)
def test_our_files_name_our_code_only(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    for name in re.findall(r"!\w+\s+(\S+)", text):
        assert name.startswith("hf_posenc."), name
    assert "__" not in text
