"""Run the command line in forked children and inject faults; one JSON line per scenario.

A child starts in a moment because everything is imported before. This process computes nothing itself: a child would
miss the threads of that.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import time
import traceback
from pathlib import Path

import torch

from hf_posenc.cli import main
from hf_posenc.cli.app import app  # noqa: F401  what a fresh command would import first
from hf_posenc.eval.comparison import measure
from hf_posenc.eval.comparison import run as comparing
from hf_posenc.eval.evaluation import language_model  # noqa: F401
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.texts import passkey  # noqa: F401
from hf_posenc.training import finetune  # noqa: F401

HERE, MODEL = Path(sys.argv[1]), Path(sys.argv[1]) / "model"
LIMIT = 1200  # seconds until a child is given up; on an idle machine it takes a few
TEXT = HERE / "text.txt"
COMPARE = [
    "compare", "--model", MODEL, "--schemes", "unpatched,pi,yarn", "--lengths", "256,512", "--samples", "2",
    "--set", "scored=16", "--tasks", "posenc_ppl", "--text", TEXT,
]  # fmt: skip
CELLS = 6  # schemes times lengths
FINETUNE = [
    "finetune", "--model", MODEL, "--scheme", "yarn", "--factor", "2", "--set", "length=64", "--steps", "6",
    "--set", "rank=2", "--set", "save_every=2", "--text", TEXT, "--held-out", TEXT, "--set",
    "eval_lengths=256", "--json",
]  # fmt: skip


def fork(words, setup=lambda: None):
    """Start a command; its process number."""
    child = os.fork()
    if child:
        return child
    torch.set_num_threads(1)
    log = HERE / f"{os.getpid()}"
    for number, ending in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(log.with_suffix(ending), os.O_CREAT | os.O_WRONLY), number)
    code = 1
    try:
        setup()
        main(list(map(str, words)))
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(child):
    """Exit code and output of a child, which is killed if it takes too long."""
    until = time.monotonic() + LIMIT
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    out, err = ((HERE / f"{child}{ending}").read_text(errors="replace") for ending in (".out", ".err"))
    return {"code": os.waitstatus_to_exitcode(status), "out": out, "err": err}


def run(words, setup=lambda: None):
    return ended(fork(words, setup))


def noted(log):
    """Setup that logs every cell that begins and every cell that is stored."""

    def setup():
        evaluate, put = measure.evaluation_of, Store.put

        def note(*words):
            with open(log, "a") as file:
                file.write(" ".join(map(str, words)) + "\n")

        def begun(lm, settings, label):
            note("begin", label, *settings.lengths)
            return evaluate(lm, settings, label)

        def kept(store, record):
            put(store, record)
            note("kept", record.scheme, record.length)

        measure.evaluation_of, Store.put = begun, kept

    return setup


def wait_until(condition, child=None):
    """Wait for a condition; a child that dies before, or takes too long, is an error."""
    until = time.monotonic() + LIMIT
    while True:
        died = child is not None and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if condition():
            return
        if died:
            raise ChildProcessError(ended(child)["err"])
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.002)


def lines(log, word):
    return [line for line in log.read_text().splitlines() if line.startswith(word)] if log.exists() else []


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")) if folder.exists() else []


def same(one, other, names=("results.json", "results.csv", "results.md", "documents.jsonl", "page.html")):
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def whole():
    """The folder of an uninterrupted comparison, and its seconds."""
    folder = HERE / "whole" / "run"
    if not folder.exists():
        started = time.monotonic()
        assert run([*COMPARE, "--out", folder])["code"] == 0
        (HERE / "seconds").write_text(str(time.monotonic() - started))
    return folder, float((HERE / "seconds").read_text())


def tuned():
    """The folder of an uninterrupted fine-tuning."""
    folder = HERE / "tuned"
    if not folder.exists():
        answer = run([*FINETUNE, "--out", folder])
        assert answer["code"] == 0, answer["err"]
    return folder


def twice(name):
    """Results tell where they are called from; keep the folder's own name, so that files are equal."""
    folder = HERE / name / "run"
    folder.parent.mkdir()
    return folder


def kills(count):
    """kill -9 at ``count`` random moments of a comparison, each in a fresh folder."""
    reference, seconds = whole()
    drawn, found = random.Random(0), []
    for number in range(int(count)):
        folder = twice(f"killed{number}")
        log = folder.parent / "log"
        child = fork([*COMPARE, "--out", reference], killed_setup(log, folder))
        done = drawn.randrange(CELLS + 1)  # by what it has done, as the next run may be slower or faster than the first
        wait_until(lambda log=log, done=done: len(lines(log, "kept")) >= done, child)
        time.sleep(drawn.random() * seconds / CELLS)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        first = ended(child)["code"]
        kept, begun = lines(log, "kept"), len(lines(log, "begin"))
        second = ended(fork([*COMPARE, "--out", reference], killed_setup(log, folder)))["code"]
        again = lines(log, "begin")[begun:]
        found.append({
            "first": first, "second": second, "kept": len(kept), "begun": begun,
            "measured again": len({line.split(" ", 1)[1] for line in kept} & {line.split(" ", 1)[1] for line in again}),
            "same": same(reference, folder), "stray": [name for name in files(folder) if "tmp" in name],
        })  # fmt: skip
    return found


def killed_setup(log, folder):
    """Setup that redirects the results of the same command line to another folder; all else in them stays equal."""

    def setup():
        noted(log)()
        comparing.folder_of_results = lambda out: folder

    return setup


def stopped_tuning(number):
    """A signal after the first checkpoint of a fine-tuning, then the command it names."""
    reference, folder = tuned(), HERE / f"tuning{number}"

    def slowed():
        from hf_posenc.training import run_folder

        write = run_folder.write_json

        def waiting(path, content):
            write(path, content)
            if Path(path).parent.name == "checkpoint-4":
                (HERE / f"ready{number}").touch()
                time.sleep(LIMIT)

        run_folder.write_json = waiting

    child = fork([*FINETUNE, "--out", folder], slowed)
    wait_until((HERE / f"ready{number}").exists, child)
    os.kill(child, int(number))
    first = ended(child)
    half = files(folder)
    second = run([*FINETUNE, "--out", folder, "--resume"])
    curves = [json.loads((where / "curve.json").read_text()) for where in (reference, folder)]
    deviation = max(abs(a["loss"] - b["loss"]) for a, b in zip(*curves, strict=True) if a["loss"] is not None)
    return [first, second, deviation, half]


def small_files(limit=1000):
    """No file may grow beyond a few bytes, which the system says as EFBIG."""

    def setup():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return setup


def full():
    """Every command that writes, where no file has room."""
    out, found = HERE / "full", {}
    commands = {
        "compare": [*COMPARE, "--out", out],
        "finetune": [*FINETUNE, "--out", out],
        "eval": ["eval", "--model", MODEL, "--lengths", "256", "--tasks", "posenc_ppl", "--samples", "1",
                 "--text", TEXT, "--out", out / "r.json"],
        "export": ["export", "--model", MODEL, "--scheme", "yarn", "--factor", "2", "--out", out],
    }  # fmt: skip
    for name, words in commands.items():
        answer = ended(fork(words, small_files()))
        found[name] = {"code": answer["code"], "err": answer["err"], "left": files(out)}
        shutil.rmtree(out, ignore_errors=True)
    return found


def two_writers():
    """A second command on the folder of one that is under way."""
    folder, tuning = twice("shared"), HERE / "shared tuning"

    def waiting(ready, go):
        def setup():
            from hf_posenc.training import run_folder

            evaluate, write = measure.evaluation_of, run_folder.write_json

            def pause():
                ready.touch()
                wait_until(go.exists)

            def paused(*args, **kwargs):
                pause()
                return evaluate(*args, **kwargs)

            def paused_write(path, content):
                pause()
                write(path, content)

            measure.evaluation_of, run_folder.write_json = paused, paused_write

        return setup

    found = {}
    for name, words in {"compare": [*COMPARE, "--out", folder], "finetune": [*FINETUNE, "--out", tuning]}.items():
        ready, go = HERE / f"{name} ready", HERE / f"{name} go"
        child = fork(words, waiting(ready, go))
        wait_until(ready.exists, child)
        second = run(words)
        go.touch()
        found[name] = [ended(child), second]
    with contextlib.closing(sqlite3.connect(folder / "cells.sqlite")) as store:
        found["cells"] = store.execute("SELECT count(*) FROM cells").fetchone()[0]
    return found


SCENARIOS = {f.__name__: f for f in (kills, stopped_tuning, full, two_writers)}

if __name__ == "__main__":
    for scenario in sys.argv[2:]:
        name, _, argument = scenario.partition("=")
        try:
            found = SCENARIOS[name](*([argument] if argument else []))
        except BaseException:
            found = {"crashed": traceback.format_exc()}
        print(json.dumps({scenario: found}), flush=True)  # noqa: T201
