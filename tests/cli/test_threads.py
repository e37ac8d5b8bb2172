"""Waiting threads of a command sleep, unless its user decided otherwise, and before torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hf_posenc.cli.threads import POLICY, wait_passively


@pytest.mark.parametrize("own", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "10"}, {"KMP_BLOCKTIME": "5"}])
def test_the_users_setting_stays(monkeypatch: pytest.MonkeyPatch, own: dict[str, str]) -> None:
    environment = dict(own)
    monkeypatch.setattr(os, "environ", environment)
    wait_passively()
    assert environment == (own or POLICY)


def test_it_is_set_before_torch_is_loaded() -> None:
    """By the command line, and not by an import of the package."""
    program = (
        "import os, sys\n"
        "import hf_posenc, hf_posenc.cli\n"
        "assert 'OMP_WAIT_POLICY' not in os.environ\n"
        "import hf_posenc.cli.threads as threads\n"
        "set_now = threads.wait_passively\n"
        "def checked():\n"
        "    print('torch' in sys.modules)\n"
        "    set_now()\n"
        "threads.wait_passively = checked\n"
        "try:\n"
        "    hf_posenc.cli.main(['--version'])\n"
        "finally:\n"
        "    print(os.environ['OMP_WAIT_POLICY'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in POLICY}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    lines = run.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("False", "PASSIVE"), run.stderr
