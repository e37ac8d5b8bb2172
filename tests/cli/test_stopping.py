"""Signals at moments at which Python discards the exception that a handler raises."""

from __future__ import annotations

import signal
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from hf_posenc.cli.stopping import stoppable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there SIGTERM ends a process without a handler")


class Destructor:
    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def __del__(self) -> None:
        self.act()


class Referent:
    pass


def in_destructor(act: Callable[[], None]) -> None:
    Destructor(act)


def in_callback(act: Callable[[], None]) -> None:
    referent = Referent()
    reference = weakref.ref(referent, lambda _: act())
    del referent
    assert reference() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("inside", [in_destructor, in_callback])
def test_no_signal_is_lost(
    inside: Callable[[Callable[[], None]], None], number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    went_on: list[bool] = []

    def command() -> None:
        inside(lambda: signal.raise_signal(number))
        went_on.append(True)
        time.sleep(10)

    with pytest.raises(SystemExit) as ended, stoppable():
        command()
    assert went_on, "control: Python discards what a handler raises there"
    assert ended.value.code == 128 + number
    assert "Traceback" not in capsys.readouterr().err


def test_other_discarded_exceptions_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: seen.append(what.exc_value))
    hook = sys.unraisablehook

    def act() -> None:
        raise ValueError("of a destructor")

    with stoppable():
        in_destructor(act)
    assert [str(one) for one in seen] == ["of a destructor"]
    assert sys.unraisablehook is hook
