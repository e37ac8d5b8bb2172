"""Names that become file names stay inside their folder, whatever they contain."""

from __future__ import annotations

import tempfile
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_posenc.core.files.paths import slug

HOSTILE = [
    *("", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "C:\\x", "..\\..\\x", "file:///x", "~", "-rf", "*"),
    *("con", "NUL", "com1.txt", "CON.png", "x\x00y", "a\nb", "\u202egpj.exe", "\ud800", "x-0123456789ab"),
    *("é" * 300, "x" * 300, "a.", " a "),
]


def stays_inside(name: str) -> None:
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


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_stays_in_its_folder(name: str) -> None:
    stays_inside(name)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet="aAbB./-_ é\x00", max_size=4), st.text(alphabet="aAbB./-_ é\x00", max_size=4))
def test_two_names_never_share_a_file(first: str, second: str) -> None:
    """Also on disks that do not tell capitals from small letters."""
    assert (slug(first).lower() == slug(second).lower()) == (first == second)
