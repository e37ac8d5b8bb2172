"""Rows, and files that are whole or not there."""

from __future__ import annotations

import json
import sys

import pytest

from hf_posenc.errors import MissingPackage
from hf_posenc.eval.report.report import report_text, write_report
from hf_posenc.eval.results.rows import Row, rows_of, write_json

RAW = {
    "results": {
        "posenc_passkey": {
            "name": "posenc_passkey", "alias": "posenc_passkey", "sample_len": 4,
            "acc_L256,none": 0.75, "acc_L256_stderr,none": 0.25, "acc_L256_D50,none": 0.5,
            "acc_L256_D50_stderr,none": "N/A",
        },
        "lambada": {"name": "lambada", "sample_len": 10, "acc,none": 0.5, "acc_stderr,none": 0.1},
    },
    "n-samples": {"posenc_passkey": {"original": 8, "effective": 4}, "lambada": {"original": 10, "effective": 10}},
}  # fmt: skip


def test_rows_are_tidy() -> None:
    assert rows_of(RAW, scheme="pi", model="m") == [
        Row("m", "pi", "posenc_passkey", 256, None, "acc", 0.75, 0.25, 4),
        Row("m", "pi", "posenc_passkey", 256, 0.5, "acc", 0.5, None, 4),
        Row("m", "pi", "lambada", None, None, "acc", 0.5, 0.1, 10),
    ]


def test_a_crash_while_writing_keeps_the_old_file(tmp_path) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"rows": [1]})

    class Unwritable:
        def __str__(self) -> str:
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk is full"):
        write_json(path, {"rows": [1, 2, Unwritable()]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"rows": [1]}
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


ABOUT = {
    "model": "starter llama", "trained_length": 256, "lengths": [256, 512], "samples": 4, "scored_tokens": 64,
    "keys": 2,
    "depths": [0.0, 1.0], "fine_tune_steps": 8, "factor_per_length": False,
    "options": {"dynamic_ntk": {"256": {"multiplier": 2.0}, "512": {"multiplier": 2.0}}},
    "python": "3.11.7", "versions": {"torch": "2.13.0"},
}  # fmt: skip


def rows() -> list[Row]:
    values = {"unpatched": (2.0, 4.0, 1.0, 0.0), "yarn": (2.0, 1.9, 1.0, 0.9)}
    found = []
    for scheme, (short, long, short_found, long_found) in values.items():
        for length, loss, share in ((256, short, short_found), (512, long, long_found)):
            found.append(Row("m", scheme, "posenc_ppl", length, None, "nll", loss, 0.1, 4))
            found.append(Row("m", scheme, "posenc_ppl", length, None, "ppl", 2.718**loss, 0.3, 4))
            found.append(Row("m", scheme, "posenc_passkey", length, None, "acc", share, 0.1, 4))
    return found


def test_report_holds_every_number() -> None:
    text = report_text(rows(), ABOUT)
    assert "| scheme | 256 (1×) | 512 (2×) |" in text
    assert "| yarn | 2.000 ± 0.100 | 1.900 ± 0.100 |" in text
    assert "| unpatched | 100 % | 0 % |" in text
    assert "dynamic_ntk: multiplier 2." in text
    assert text.count("factor 2 at every length") >= 3
    refitted = ABOUT | {"factor_per_length": True}
    refitted["options"] = {"dynamic_ntk": {"256": {"multiplier": 1.0}, "512": {"multiplier": 2.0}}}
    other = report_text(rows(), refitted)
    assert "dynamic_ntk: multiplier 1 at 256, 2 at 512." in other
    assert other.count("refitted per length") >= 3
    assert "factor 2 at every length" not in other
    assert "![" in text


def test_plots_are_image_files(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    write_report(tmp_path, rows(), ABOUT)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loss.png", "overview.png", "passkey.png", "report.md"]
    for name in ("loss.png", "overview.png", "passkey.png"):
        head = (tmp_path / name).read_bytes()[:24]
        assert head.startswith(b"\x89PNG")
        assert int.from_bytes(head[16:20], "big") > 600  # wide enough to read


def test_missing_matplotlib_names_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackage, match=r"hf-posenc\[plot\]"):
        write_report(tmp_path, rows(), ABOUT)
