"""Rows 35 to 44 and 67 to 72 on the command line: an exit code, no traceback, nothing on stdout, nothing written."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hf_posenc.cli import main, output_paths

START = ["-m", "starter:llama"]
COMPARE = ["compare", *START, "-s", "yarn", "--out", "OUT"]
TUNE = ["finetune", *START, "-s", "yarn", "-f", "2", "--out", "OUT"]
# number and name: words, exit code, what is said
WORDS: dict[str, tuple[list[str], int, str]] = {
    "35 command": (["lst"], 2, "'list'"),
    "35 flag": (["list", "--jsn"], 2, "--json"),
    "35 scheme": (["info", "yarm"], 2, "'yarn'"),
    "35 escape code": (["info", "\x1b[31myarn"], 2, r"\\x1b"),
    "35 empty": (["info", ""], 2, "''"),
    "35 scheme of a picture": (["show", "yarm"], 2, "'yarm'"),
    "35 task": (["eval", *START, "-t", "posenc_pl", "-l", "256"], 2, "posenc_ppl"),
    "35 task of a comparison": ([*COMPARE, "-t", "posenc_pl"], 2, "posenc_ppl"),
    "36 word": ([*COMPARE, "-l", "abc"], 2, "'abc'"),
    "36 zero": ([*COMPARE, "-l", "0"], 2, "'0'"),
    "36 negative": ([*COMPARE, "-l", "256,-1"], 2, "'-1'"),
    "36 exponent": ([*COMPARE, "-l", "1e3"], 2, "'1e3'"),
    "36 superscript": ([*COMPARE, "-l", "25²"], 2, "25"),
    "36 depths": ([*COMPARE, "--depths", "nan"], 2, "from 0 to 1"),
    "36 depth of two": ([*COMPARE, "--depths", "2"], 2, "from 0 to 1"),
    "38 too short": (["eval", *START, "-l", "1"], 1, "no room"),
    "39 out is a file": ([*COMPARE[:-1], "FILE"], 2, "cannot be a folder"),
    "39 out in a file": ([*COMPARE[:-1], "FILE/x"], 2, "cannot be a folder"),
    "39 eval into a folder": (["eval", *START, "--out", "FOLDER"], 2, "cannot be a file"),
    "39 eval into a file": (["eval", *START, "--out", "FILE/x.json"], 2, "cannot be a file"),
    "39 eval into a pipe": (["eval", *START, "--out", "PIPE"], 2, "cannot be a file"),
    "39 picture into a pipe": (["show", "rope", "--out", "PIPE.svg"], 2, "cannot be a file"),
    "39 rates into a file": (["find-learning-rate", *TUNE[1:-1], "FILE"], 2, "cannot be a folder"),
    "39 rates in a file": (["find-learning-rate", *TUNE[1:-1], "FILE/x"], 2, "cannot be a folder"),
    "39 export to a full folder": (["export", *START, "-s", "yarn", "-f", "2", "--out", "FULL"], 2, "not empty"),
    "41 comma": (["eval", *START, "-s", "a,b"], 2, "'a,b'"),
    "41 blank": ([*COMPARE[:-4], "-s", "ya rn", "--out", "OUT"], 2, "'ya rn'"),
    "41 glob": ([*COMPARE[:-4], "-s", "yarn*", "--out", "OUT"], 2, r"yarn\*"),
    "41 path": ([*COMPARE[:-4], "-s", "../x", "--out", "OUT"], 2, r"\.\./x"),
    "41 none": ([*COMPARE[:-4], "-s", "", "--out", "OUT"], 2, "no scheme"),
    "42 path": (["eval", "-m", "../absent"], 2, "absent"),
    "42 file": (["check", "-m", "FILE", "-s", "yarn"], 2, "FILE"),
    "42 starter": (["check", "-m", "starter:lama", "-s", "yarn"], 2, "'llama'"),
    "42 empty folder": (["eval", "-m", "FOLDER"], 1, "cannot be loaded"),
    "42 device": ([*COMPARE, "--device", "nope"], 1, "no device 'nope'"),
    "42 device that is not there": ([*COMPARE, "--device", "cuda:77"], 1, "no device 'cuda:77'"),
    "44 seed": ([*COMPARE, "--seed", "-1"], 2, "seed"),
    "44 seed of eval": (["eval", *START, "--seed", "-1"], 2, "seed"),
    "44 limit": ([*COMPARE, "--limit", "0"], 2, "limit"),
    "44 samples": (["eval", *START, "--samples", "0"], 2, "samples"),
    "44 nothing to tune": (["finetune", *START, "-s", "yarn", "--out", "OUT"], 2, "--factor or --target-length"),
    "44 factor alone": (["eval", *START, "-f", "2", "-l", "256"], 1, "factor needs a scheme.+--scheme"),
    "44 shape of a model": (["bench", *START, "-s", "yarn", "--shape", "1,32,2,2"], 2, "--model has no effect beside"),
    "44 kind of a model": (["bench", "-s", "yarn", "--kind", "gpt2"], 2, "--kind has an effect with --shape only"),
    "44 length of a model": (
        ["bench", "-s", "yarn", "--trained-length", "9"],
        2,
        "--trained-length has an effect",
    ),
    "44 heads of a model": (["show", "rope", *START, "--heads", "4"], 2, "--heads has no effect beside --model"),
    "44 frames of a plot": (["show", "rope", "--frames", "3"], 2, "--frames has an effect on animations only"),
    "44 nothing near": (["info", "nosuch"], 2, r"called 'nosuch'\. `hf-posenc list`"),
    "44 learning rate": ([*TUNE, "--learning-rate", "nan"], 1, "--learning-rate nan"),
    "44 method": ([*TUNE, "--method", "lroa"], 1, "'lroa'"),
    "44 packing": ([*TUNE, "--packing", "joind"], 1, "'joind'"),
    "44 rows too long": ([*TUNE, "--length", "99999"], 2, "99999"),
    "3 factor": (["check", *START, "-s", "yarn", "-f", "0.5"], 2, "at least 1"),
    "5 factor nan": (["check", *START, "-s", "yarn", "-f", "nan"], 2, "nan"),
    "6 factor inf": (["check", *START, "-s", "yarn", "-f", "1e400"], 2, "inf"),
    "53 option NaN": (["check", *START, "-s", "yarn", "-o", "beta_fast=NaN"], 2, "nan"),
    "67 task file": (["eval", *START, "-t", "./x.yaml"], 1, "--trust-tasks"),
    "67 no folder of tasks": ([*COMPARE, "--include-path", "absent", "--trust-tasks"], 2, "absent"),
    "67 folder of tasks": ([*COMPARE, "--include-path", "FOLDER"], 1, "--trust-tasks"),
    "68 task with a slash": ([*COMPARE, "-t", "a/b"], 1, "a/b"),
    "68 long task": ([*COMPARE, "-t", "x" * 301], 2, "xxx…"),
    "69 text absent": ([*COMPARE, "--text", "absent.txt"], 1, "absent.txt"),
    "69 text empty": (["eval", *START, "-l", "256", "--text", "EMPTY"], 1, "got 0"),
    "69 text blank": (["eval", *START, "-l", "256", "--text", "BLANK"], 1, "text"),
    "69 text a pipe": (["eval", *START, "-l", "256", "--text", "PIPE"], 1, "pipe or a device"),
    "69 text a device": (["eval", *START, "-l", "256", "--text", "/dev/zero"], 1, "pipe or a device"),
    "69 text too short": (["eval", *START, "-l", "500000"], 1, "need 500080 tokens of text, got"),
    "37 length": (["eval", *START, "-l", "999999999", "-t", "posenc_passkey"], 1, "999,999,999 tokens.+GiB.+Choose"),
    "37 length of a probe": (["probe", *START, "-l", "999999999"], 1, "999,999,999 tokens.+GiB.+Choose"),
}


@pytest.mark.parametrize(("words", "code", "message"), WORDS.values(), ids=WORDS)
def test_invalid_arguments_are_refused(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("x")
    Path("EMPTY").touch()
    Path("BLANK").write_text(" \n\n ")
    os.mkfifo("PIPE")
    os.mkfifo("PIPE.svg")
    Path("FOLDER").mkdir()
    Path("FULL").mkdir()
    Path("FULL/x").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(words)
    captured = capsys.readouterr()
    assert ended.value.code == code, captured.err
    assert captured.out == ""
    assert re.search(message, captured.err), captured.err
    assert "Traceback" not in captured.err
    assert all(c.isprintable() or c in "\n\t" for c in captured.err)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "words", [["eval", *START, "--out", "sub/x.json"], ["find-learning-rate", *TUNE[1:]]], ids=" ".join
)
def test_a_folder_without_access_is_refused_before_the_work(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def denied(dir: Path) -> None:  # root may write anywhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(dir))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output_paths, "TemporaryFile", denied)
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"--out '{words[-1]}' cannot be written (Permission denied). Make the folder writable" in said


@pytest.mark.parametrize(
    "surroundings",
    [
        {"COLUMNS": "20"},
        {"LANG": "C", "LC_ALL": "C"},
        {"PYTHONIOENCODING": "ascii"},
        {"TERM": "dumb"},
        {"COLUMNS": "x"},
        {"NO_COLOR": "1"},
    ],
    ids=str,
)
def test_row_43_terminals(surroundings: dict[str, str]) -> None:
    command = [sys.executable, "-m", "hf_posenc.cli", "list"]
    done = subprocess.run(command, capture_output=True, env=os.environ | surroundings, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"yarn" in done.stdout
    assert b"Traceback" not in done.stderr


def test_row_43_closed_stdout() -> None:
    """``| head -1``."""
    command = f"{sys.executable} -m hf_posenc.cli list --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert done.stdout.strip() == b"["
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_row_43_streams_that_are_closed(closed: str) -> None:
    command = f"{sys.executable} -m hf_posenc.cli list {closed}"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == 0


def test_row_40_other_settings(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A run is not resumed with other settings; the difference is named."""
    from hf_posenc.errors import CheckpointMismatch
    from hf_posenc.training.resume import start_run

    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "run.json").write_text(json.dumps({"rank": 3}))
    with pytest.raises(CheckpointMismatch, match=r"rank=3.+4"):
        start_run(tmp_path, {"rank": 4}, resume=True)
    assert json.loads((tmp_path / "run.json").read_text()) == {"rank": 3}


def test_row_40_a_run_that_was_not_asked_to_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Refused before the model is loaded, with the flag that resumes it."""
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["finetune", "-m", "no/such", "-s", "yarn", "-f", "2", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "Continue it with --resume" in capsys.readouterr().err
