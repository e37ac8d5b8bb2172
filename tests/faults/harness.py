"""Run the command line in forked children and inject faults; one JSON line per scenario.

A child starts in a moment because everything is imported before. This process computes nothing itself: a child would
miss the threads of that.
"""

import contextlib
import functools
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
from transformers.models.llama.modeling_llama import LlamaModel

from hf_posenc.cli import main
from hf_posenc.cli.app import app  # noqa: F401  what a fresh command would import first
from hf_posenc.eval.comparison import measure
from hf_posenc.eval.comparison import run as comparing
from hf_posenc.eval.evaluation import language_model  # noqa: F401
from hf_posenc.eval.texts import passkey  # noqa: F401
from hf_posenc.training import finetune  # noqa: F401

HERE, MODEL = Path(sys.argv[1]), Path(sys.argv[1]) / "model"
LIMIT = 1200  # seconds until a child is given up; on an idle machine it takes a few
TEXT = HERE / "text.txt"
COMPARE = [
    "compare", "--model", MODEL, "--schemes", "unpatched,pi,yarn", "--lengths", "256,512", "--samples", "2",
    "--scored", "16", "--tasks", "posenc_ppl", "--text", TEXT, "--quiet",
]  # fmt: skip
CELLS = 6  # schemes times lengths
ROOM = 4 << 20  # bytes: less than one hidden state of 65,536 tokens
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


def ended(child, started=None):
    """What a child leaves behind; it is killed if it takes too long."""
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
    """Note every cell that begins and every cell that is kept."""

    def setup():
        evaluate, put = measure.evaluate, measure.Store.put

        def note(*words):
            with open(log, "a") as file:
                file.write(" ".join(map(str, words)) + "\n")

        def begun(lm, **given):
            note("begin", given["label"], *given["lengths"])
            return evaluate(lm, **given)

        def kept(store, record):
            put(store, record)
            note("kept", record.scheme, record.length)

        measure.evaluate, measure.Store.put = begun, kept

    return setup


def wait_until(condition):
    until = time.monotonic() + LIMIT
    while not condition():
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
    """An uninterrupted comparison, and how long it takes."""
    folder = HERE / "whole" / "run"
    if not folder.exists():
        started = time.monotonic()
        assert run([*COMPARE, "--out", folder])["code"] == 0
        (HERE / "seconds").write_text(str(time.monotonic() - started))
    return folder, float((HERE / "seconds").read_text())


def tuned():
    """An uninterrupted fine-tuning, and how long it takes."""
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
        wait_until(lambda log=log, done=done: len(lines(log, "kept")) >= done)
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
    """The same command line into another folder: everything else in the results is then equal."""

    def setup():
        noted(log)()
        comparing.folder_of_results = lambda out: folder

    return setup


def stopped(number):
    """A signal after the first cell, then the same command again."""
    number = int(number)
    folder = twice(f"stopped{number}")
    log = folder.parent / "log"
    child = fork([*COMPARE, "--out", folder], noted(log))
    wait_until(lambda: lines(log, "kept"))
    os.kill(child, number)
    first = ended(child)
    stray = [name for name in files(folder) if name != "cells.sqlite"]
    kept, begun = lines(log, "kept"), len(lines(log, "begin"))
    second = run([*COMPARE, "--out", folder], noted(log))
    again = {line.split(" ", 1)[1] for line in lines(log, "begin")[begun:]}
    return [first, second, stray, len({line.split(" ", 1)[1] for line in kept} & again), len(kept)]


def impatient():
    """A second signal while the first is being answered."""
    folder = twice("impatient")
    log = folder.parent / "log"

    def setup():
        noted(log)()
        undo = measure.unpatch_model

        def slow(model):
            with open(log, "a") as file:
                file.write("putting in order\n")
            time.sleep(2 * LIMIT)
            return undo(model)

        measure.unpatch_model = slow

    words = [word if word != "unpatched,pi,yarn" else "pi" for word in COMPARE]
    child = fork([*words, "--out", folder], setup)
    wait_until(lambda: lines(log, "begin"))
    os.kill(child, signal.SIGINT)
    wait_until(lambda: lines(log, "putting"))
    os.kill(child, signal.SIGINT)
    return ended(child)


def stopped_tuning(number):
    """A signal after the first checkpoint of a fine-tuning, then the command it names."""
    reference, folder = tuned(), HERE / f"tuning{number}"

    def slowed():
        from hf_posenc.training import resume

        write = resume.write_json

        def waiting(path, content):
            write(path, content)
            if Path(path).parent.name == "checkpoint-4":
                (HERE / f"ready{number}").touch()
                time.sleep(LIMIT)

        resume.write_json = waiting

    child = fork([*FINETUNE, "--out", folder], slowed)
    wait_until((HERE / f"ready{number}").exists)
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
        "eval": ["eval", "--model", MODEL, "--length", "256", "--task", "posenc_ppl", "--samples", "1", "--text", TEXT,
                 "--out", out / "r.json"],
        "export": ["export", "--model", MODEL, "--scheme", "yarn", "--factor", "2", "--out", out],
        "show": ["show", "alibi", "--picture", "bias", "--out", out / "a.png"],
        "probe": ["probe", "--model", MODEL, "--length", "64", "--text", TEXT, "--samples", "1", "--out", out],
    }  # fmt: skip
    for name, words in commands.items():
        answer = ended(fork(words, small_files()))
        found[name] = {"code": answer["code"], "err": answer["err"], "left": files(out)}
        shutil.rmtree(out, ignore_errors=True)
    return found


def read_only():
    """A parent that is a file, and a folder on a file system that is mounted for reading only."""
    (HERE / "file").write_text("")
    paths = {"a file": HERE / "file"}
    frozen = HERE / "frozen"
    frozen.mkdir()
    mounted = not os.system(f"mount -t tmpfs -o size=1m,ro tmpfs {frozen} 2>/dev/null")
    if mounted:
        paths["read only"] = frozen
    found = {}
    try:
        for what, target in paths.items():
            for name, words in {
                "compare": [*COMPARE, "--out", target / "deep"],
                "finetune": [*FINETUNE, "--out", target / "deep"],
                "show": ["show", "alibi", "--picture", "bias", "--out", target / "deep" / "a.png"],
                "export": ["export", "--model", MODEL, "--scheme", "yarn", "--factor", "2", "--out", target / "deep"],
            }.items():
                found[f"{name}: {what}"] = run(words)
    finally:
        if mounted:
            os.system(f"umount {frozen}")
    return found


def filling():
    """A disk that somebody else fills up in the middle of a comparison, and that is then given more room."""
    disk = HERE / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=8m tmpfs {disk} 2>/dev/null"):
        return None
    log = HERE / "filling.log"

    def shrinking():
        noted(log)()
        put = measure.Store.put

        def kept(store, record):
            put(store, record)
            os.system(f"mount -o remount,size=48k {disk}")

        measure.Store.put = kept

    try:
        first = run([*COMPARE, "--out", disk / "run"], shrinking)
        left = files(disk)
        os.system(f"mount -o remount,size=8m {disk}")
        kept, begun = {line.split(" ", 1)[1] for line in lines(log, "kept")}, len(lines(log, "begin"))
        second = run([*COMPARE, "--out", disk / "run"], noted(log))
        again = {line.split(" ", 1)[1] for line in lines(log, "begin")[begun:]}
        return [first, left, len(kept), len(kept & again), second, files(disk)]
    finally:
        os.system(f"umount {disk}")


def two_writers():
    """A second command on the folder of one that is under way."""
    folder, tuning = twice("shared"), HERE / "shared tuning"

    def waiting(ready, go):
        def setup():
            from hf_posenc.training import resume

            evaluate, write = measure.evaluate, resume.write_json

            def pause():
                ready.touch()
                wait_until(go.exists)

            def paused(*args, **kwargs):
                pause()
                return evaluate(*args, **kwargs)

            def paused_write(path, content):
                pause()
                write(path, content)

            measure.evaluate, resume.write_json = paused, paused_write

        return setup

    found = {}
    for name, words in {"compare": [*COMPARE, "--out", folder], "finetune": [*FINETUNE, "--out", tuning]}.items():
        ready, go = HERE / f"{name} ready", HERE / f"{name} go"
        child = fork(words, waiting(ready, go))
        wait_until(ready.exists)
        second = run(words)
        go.touch()
        found[name] = [ended(child), second]
    with contextlib.closing(sqlite3.connect(folder / "cells.sqlite")) as store:
        found["cells"] = store.execute("SELECT count(*) FROM cells").fetchone()[0]
    return found


def memory():
    """One length needs more memory than there is."""
    folder = twice("memory")

    def limited():
        whole = LlamaModel.forward

        @functools.wraps(whole)
        def forward(self, input_ids=None, *args, **kwargs):
            if input_ids.shape[1] < 60_000:  # the last of 65,536 tokens is only asked for
                return whole(self, input_ids, *args, **kwargs)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))
            try:  # around torch alone: tokenizers, when they get no memory, end the process
                return whole(self, input_ids, *args, **kwargs)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

        LlamaModel.forward = forward

    words = [word if word != "256,512" else "256,65536,512" for word in COMPARE]
    words = [word if word != "unpatched,pi,yarn" else "none" for word in words]
    answer = run([*words, "--out", folder], limited)
    results = folder / "results.json"
    return [answer, json.loads(results.read_text())["cells"] if results.exists() else []]


def odd():
    """Places and processes that are not as they should be; what each command says and leaves."""
    target = HERE / "odd"
    target.mkdir()
    (target / "loop").symlink_to("loop")
    (target / "results a folder" / "results.json").mkdir(parents=True)
    (target / "store a folder" / "cells.sqlite").mkdir(parents=True)
    (target / "garbage").mkdir()
    (target / "garbage" / "cells.sqlite").write_bytes(bytes(range(256)) * 20)
    (target / "cut").mkdir()
    with contextlib.closing(sqlite3.connect(target / "cut" / "cells.sqlite")) as store:
        store.execute("CREATE TABLE x(a)")
        store.commit()
    os.truncate(target / "cut" / "cells.sqlite", 4096 + 100)

    def removed():
        put = measure.Store.put

        def gone(store, record):
            put(store, record)
            shutil.rmtree(target / "removed")

        measure.Store.put = gone

    def no_temporary_folder():
        os.environ["TMPDIR"] = "/proc/nowhere"
        tempfile.tempdir = None

    def few_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))

    faults = {
        "loop": None, "results a folder": None, "store a folder": None, "garbage": None, "cut": None,
        "removed": removed, "no temporary folder": no_temporary_folder, "few files": few_files,
        "mute": lambda: os.close(2), "deaf": lambda: os.close(0),
    }  # fmt: skip
    found = {}
    for name, setup in faults.items():
        before = files(target / name)
        answer = run([*COMPARE, "--out", target / name], setup or (lambda: None))
        found[name] = {"code": answer["code"], "err": answer["err"], "before": before, "after": files(target / name)}
    return found


SCENARIOS = {
    f.__name__: f
    for f in (
        kills, stopped, impatient, stopped_tuning, full, read_only, filling, two_writers, memory, odd,
    )
}  # fmt: skip

if __name__ == "__main__":
    for scenario in sys.argv[2:]:
        name, _, argument = scenario.partition("=")
        try:
            found = SCENARIOS[name](*([argument] if argument else []))
        except BaseException:
            found = {"crashed": traceback.format_exc()}
        print(json.dumps({scenario: found}), flush=True)  # noqa: T201
