"""What a command that cannot run says and leaves: one error on stderr, nothing on stdout, nothing written, a code.

2 says that another command line is needed: an option, a scheme or a file is wrong. 1 says that the work failed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hf_posenc import errors
from hf_posenc.cli import main
from hf_posenc.cli.errors import message_of

from .conftest import Call

START = ["-m", "starter:llama"]
CHECK = ["check", *START, "-s", "yarn"]
EVAL = ["eval", *START]
COMPARE = ["compare", *START, "-s", "yarn", "--out", "OUT"]
TUNE = ["finetune", *START, "-s", "yarn", "-f", "2", "--out", "OUT"]
LOSS = [*EVAL, "-l", "128", "-t", "posenc_ppl"]
BENCH = ["bench", "-s", "yarn"]
PROBE = ["probe", *START]
SHOW = ["show", "rope", "-p", "clock"]
# words of the command: what is said
USAGE: list[tuple[list[str], str]] = [
    (["lst"], "'list'"),
    (["list", "--models"], "--model qwen3"),
    (["info", "yarn", "--properties"], "--properties"),
    (["list", "--model", "lama"], "'llama'"),
    (["info", "yarm"], "'yarn'"),
    (["info", "\x1b[31myarn"], "x1b"),
    (["check", "-m", "./absent", "-s", "yarn"], "./absent"),
    (["check", "-m", "FOLDER", "-s", "yarn"], "model_type"),
    (["check", "-m", "starter:bert", "-s", "dca"], "decoder"),
    ([*CHECK, "-f", "0.5"], "at least 1"),
    ([*CHECK, "--target-length", "8x"], "--target-length"),
    ([*CHECK, "-c", "cach"], "'cache'"),
    ([*CHECK, "-o", "beta_fst=3"], "beta_fast"),
    ([*EVAL, "-o", "beta_fast=3"], "--scheme"),
    ([*EVAL, "-t", "posenc_pl"], "posenc_ppl"),
    ([*EVAL, "-t", "./x.yaml"], "no task './x.yaml'"),
    ([*EVAL, "--dtype", "float3"], "'float3'"),
    ([*EVAL, "--text", "absent.txt"], "absent.txt"),
    ([*EVAL, "-l", "256", "--text", "PIPE"], "pipe"),
    ([*EVAL, "--out", "FOLDER"], "cannot be a file"),
    ([*EVAL, "--out", "FILE"], "results of eval"),
    ([*EVAL, "--out", "FILE/x.json"], "is a file"),
    ([*COMPARE, "-l", "abc"], "'abc'"),
    ([*TUNE, "--learning-rate", "nan"], "learning_rate"),
    ([*TUNE, "--set", "length=99999"], "99999"),
    ([*TUNE, "--text", "FILE"], "--set length="),
    ([*TUNE, "--method", "full", "--set", "rank=8"], "rank=8 was asked for"),
    ([*TUNE, "--method", "lroa"], "'lroa'"),
    ([*TUNE, "--set", "schedule=cosin"], "'cosine'"),
    ([*TUNE, "--set", "rnk=3"], "'rank'"),
    ([*TUNE, "--train-embeddings"], "--set train_embeddings=VALUE"),
    ([*EVAL, "--set", "batch-size=x"], "batch_size is 'x'"),
    ([*TUNE, "--set", "rank"], "NAME=VALUE"),
    ([*TUNE, "--set", "streaming=maybe"], "streaming"),
    ([*TUNE, "--steps", "3", "--set", "epochs=1"], "epochs"),
    ([*TUNE, "--emit", "trl", "--resume"], "--resume"),
    (["finetune", *START, "-s", "yarn", "--out", "OUT"], "--factor"),
    (["export", *START, "-s", "yarn", "-f", "2", "--out", "FULL"], "not empty"),
    (["export", *START, "-s", "yarn", "-f", "2", "--out", "FILE"], "is a file"),
    (["export", *START, "--out", "OUT"], "--scheme"),
    (["export", *START, "-s", "yarn", "--to", "vllm", "--out", "OUT"], "'--to': 'vllm' is not one of"),
    (["export", *START, "-s", "alibi", "--out", "OUT"], "alibi"),
    ([*TUNE, "--emit", "axolot"], "'axolotl'"),
    (["show", "deberta"], "--model starter:llama"),
    (["advise", *START, "--target-length", "1.3"], "whole number of tokens"),
    (["advise", *START, "--target-length", "1024", "--gpu", "80GB"], "8x80"),
    ([*LOSS, "-m", "starter:gpt2"], "--model"),
    ([*LOSS, "--set", "log_samples=true"], "--out"),
    ([*LOSS, "--set", "include_path=."], "--trust-tasks"),
    ([*EVAL, "-l", "128", "-t", "posenc_qa_file"], "data=FILE"),
    ([*LOSS, "--set", "stide=2"], "stide"),
    ([*LOSS, "--set", "keys=3"], "posenc_ppl reads keys"),
    ([*COMPARE, "-l", "64", "-t", "posenc_passkey", "--set", "scored=8"], "posenc_passkey reads scored"),
    (["bench"], "--scheme"),
    (["bench", "-s", "unpatched"], "baseline"),
    ([*BENCH, "-l", "x"], "'x'"),
    ([*BENCH, "--shape", "1,2"], "'1,2'"),
    ([*BENCH, "--shape", "gpt2:1,32,2,2"], "'gpt2:1'"),
    ([*BENCH, "--shape", "1,32,2,2", "--dtype", "auto"], "auto"),
    ([*BENCH, "--device", "tpu"], "'tpu'"),
    ([*BENCH, "--rounds", "0"], "--rounds"),
    ([*BENCH, "--cases", "chunked"], "'chunked'"),
    ([*PROBE, "--factor", "4"], "--factor"),
    ([*PROBE, "--set", "row=1"], "'rows'"),
    (["show"], "--list"),
    (["show", "ropee"], "'rope'"),
    (["show", "rope", "-p", "clok"], "'clock'"),
    ([*SHOW, "--out", "a.pdf"], ".svg"),
    ([*SHOW, "--out", "a.gif"], ".svg"),
    ([*SHOW, "--animate", "own"], "--animate"),
    ([*SHOW, "--channels", "a"], "--channels"),
    ([*SHOW, "--channels", "99"], "0 … 31"),
    ([*SHOW, "--set", "kind=lama"], "'llama'"),
    ([*SHOW, *START, "--set", "heads=4"], "--set"),
    ([*SHOW, "--length", "8"], "length=8"),
    ([*SHOW, "--trained-length", "4x"], "--trained-length is a whole number"),
    (["show", "rope", "alibi", "--layer", "1", "--json"], "--layer"),
]
FAILURES: list[tuple[list[str], str]] = [
    ([*EVAL, "-l", "999999999", "-t", "posenc_passkey"], "GiB"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that a path may lead to by mistake."""
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("x")
    os.mkfifo("PIPE")
    Path("FOLDER").mkdir()
    Path("FULL").mkdir()
    Path("FULL/x").touch()
    return tmp_path


@pytest.mark.parametrize(("words", "said"), USAGE, ids=[" ".join(words) for words, _ in USAGE])
def test_wrong_option_scheme_or_file(call: Call, place: Path, words: list[str], said: str) -> None:
    assert refused(call, place, words, said) == 2


@pytest.mark.parametrize(("words", "said"), FAILURES, ids=[" ".join(words) for words, _ in FAILURES])
def test_failure(call: Call, place: Path, words: list[str], said: str) -> None:
    assert refused(call, place, words, said) == 1


def refused(call: Call, place: Path, words: list[str], said: str) -> int:
    """The exit code of a call that says one thing on stderr and writes nothing."""
    before = sorted(place.rglob("*"))
    answer = call(*words)
    assert answer.out == ""
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert all(c.isprintable() or c in "\n\t" for c in answer.err)
    assert sorted(place.rglob("*")) == before
    return answer.code


def test_an_earlier_run_is_not_overwritten(call: Call, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1").mkdir()
    answer = call("finetune", "-m", "no/such", "-s", "yarn", "-f", "2", "--out", str(tmp_path))
    assert answer.code == 2
    assert "--resume" in answer.err


def test_debug_lets_the_error_through() -> None:
    with pytest.raises(errors.UnknownScheme):
        main(["info", "yarm", "--debug"])


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (RuntimeError("the flux is off\nline two"), 1),
        (errors.AlreadyScaled("x"), 2),
        (KeyboardInterrupt(), 130),
    ],
    ids=repr,
)
def test_unexpected_errors(call: Call, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int) -> None:
    def broken() -> None:
        raise raised

    monkeypatch.setattr("hf_posenc.cli.commands.info.list_schemes", broken)
    answer = call("list")
    assert answer.code == code
    assert ("RuntimeError: the flux is off. " in answer.err) == (code == 1)


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["compare", *START, "-s", "yarn"], "results.csv"),
        (["finetune", *START, "-s", "yarn", "-f", "2"], "README.md"),
        (["finetune", *START, "-s", "yarn", "-f", "2", "--emit", "trl"], "train.jsonl"),
        (["finetune", *START, "-s", "yarn", "-f", "2", "--emit", "axolotl"], "axolotl.yaml"),
    ],
    ids=lambda given: given if isinstance(given, str) else given[0],
)
def test_somebody_s_files_are_not_overwritten(call: Call, tmp_path: Path, words: list[str], file: str) -> None:
    (tmp_path / file).write_text("mine")
    answer = call(*words, "--out", str(tmp_path))
    assert (answer.code, file in answer.err) == (2, True)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(file, "mine")]


def test_an_interrupt_behind_another_error_is_one(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ModuleNotFoundError("Could not import module") from error

    monkeypatch.setattr("hf_posenc.cli.commands.info.list_schemes", interrupted)
    assert call("list").code == 130


def test_a_full_disk_is_named_also_where_rust_or_numpy_says_it() -> None:
    for said in ("I/O error (os error 28)", "4096 requested and 88 written", "problem writing element 1024 to file"):
        assert message_of(RuntimeError(said)).startswith("No space left on device. Free some space")
