"""No network access unless asked for: every command with the bundled models; each attempt is counted and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval", reason="comparisons need the extra `eval`")
pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
pytest.importorskip("matplotlib", reason="pictures need the extra `plot`")

pytestmark = pytest.mark.slow

LIMIT = 3600
"""Seconds; the commands take thirty together on an idle machine."""

LLAMA = ["--model", "starter:llama"]
COMMANDS = {
    "list": ["list", "--json"],
    "info": ["info", "yarn"],
    "env": ["env", "--json"],
    "show": ["show", "alibi", "--picture", "bias", "--out", "bias.png"],
    "advise": ["advise", *LLAMA, "--target-length", "512"],
    "check": ["check", *LLAMA, "--scheme", "yarn", "--factor", "2", "--checks", "identity"],
    "compare": ["compare", *LLAMA, "-s", "pi", "-l", "256", "--samples", "1", "--set", "keys=1", "--set", "depths=0.5"],
    "eval": ["eval", *LLAMA, "--lengths", "256", "--tasks", "posenc_ppl", "--samples", "1"],
    "bench": ["bench", *LLAMA, "-s", "alibi", "-l", "64", "--rounds", "1"],
    "export": ["export", *LLAMA, "--scheme", "yarn", "--factor", "2", "--out", "plain"],
    "finetune": ["finetune", *LLAMA, "-s", "pi", "-f", "2", "--set", "length=64", "--steps", "1", "--out", "run",
                 "--set", "eval_lengths=64"],
    "a model of the hub": ["check", "--model", "nobody/nothing", "--scheme", "yarn", "--factor", "2"],
}  # fmt: skip

GUARD = """
import contextlib, io, json, socket, sys

attempts = []
own_connect = socket.socket.connect


def connect(self, address):
    if self.family != getattr(socket, "AF_UNIX", None):
        refuse(address)
    return own_connect(self, address)


def refuse(*where, **how):
    attempts.append(repr(where))
    raise OSError("no network in this process")


socket.socket.connect = socket.socket.connect_ex = connect
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse

from hf_posenc.cli import main

for name, words in json.loads(sys.argv[1]).items():
    del attempts[:]
    code, said = 0, io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main(words)
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([name, code, attempts[:3], said.getvalue()[-1500:]]), flush=True)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[str], str]]:
    """Exit code, attempts and standard error of each command; nothing of the hub is cached, nothing says offline."""
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", GUARD, json.dumps(COMMANDS)], capture_output=True, text=True, timeout=LIMIT, check=False,
        cwd=home, env=kept | {"HF_HOME": str(home / "hf"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == len(COMMANDS), done.stderr[-3000:]
    return {name: (code, attempts, output) for name, code, attempts, output in lines}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "a model of the hub"])
def test_nothing_is_asked_of_the_network(name: str, found: dict[str, tuple[int, list[str], str]]) -> None:
    code, attempts, output = found[name]
    assert attempts == []
    assert code == 0, output


def test_an_attempt_is_counted(found: dict[str, tuple[int, list[str], str]]) -> None:
    """Control: asked for, the network is tried, and its absence is two sentences."""
    code, attempts, output = found["a model of the hub"]
    assert attempts
    assert code == 2
    assert "Traceback" not in output
    assert Path(__file__).name not in output
