"""A command and the function that it calls have the same defaults, so that both measure, train and draw the same."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.checkpoints.merge import merge
from hf_posenc.checks import check_scheme
from hf_posenc.cli.app import app
from hf_posenc.eval import compare, evaluate
from hf_posenc.eval.demo import run_demo
from hf_posenc.insight.advise import measured_advice
from hf_posenc.insight.bench import bench
from hf_posenc.insight.bench.settings import BenchSettings
from hf_posenc.insight.leaderboard import leaderboard
from hf_posenc.insight.plots.animate import frames
from hf_posenc.insight.plots.models import Shapes
from hf_posenc.insight.plots.registry import View
from hf_posenc.insight.probe import probe
from hf_posenc.insight.search import search
from hf_posenc.training import Training, finetune

COMMANDS: dict[str, Callable[..., Any]] = {str(one.name): one.callback for one in app.registered_commands}  # type: ignore[misc]
CALLED: list[tuple[str, Callable[..., Any]]] = [
    ("advise", measured_advice), ("bench", bench), ("bench", BenchSettings), ("check", check_scheme),
    ("compare", compare), ("demo", run_demo), ("eval", evaluate), ("finetune", Training), ("finetune", finetune),
    ("find-learning-rate", Training), ("leaderboard", leaderboard), ("merge", merge), ("probe", probe),
    ("search", search), ("show", Shapes), ("show", View),
]  # fmt: skip


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Defaults that say something; None leaves the value to what is called."""
    found = {name: one.default for name, one in signature(function).parameters.items()}
    return {name: value for name, value in found.items() if value not in (Parameter.empty, None)}


def plain(value: Any) -> Any:
    """A default as the command line writes it: numbers with commas, paths as text."""
    if isinstance(value, (tuple, list)):
        return ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value)
    return str(value) if isinstance(value, Path) else value


@pytest.mark.parametrize(("command", "function"), CALLED, ids=lambda one: getattr(one, "__name__", one))
def test_a_command_has_the_defaults_of_what_it_calls(command: str, function: Callable[..., Any]) -> None:
    here, there = defaults(COMMANDS[command]), defaults(function)
    common = here.keys() & there.keys()
    assert {name: plain(here[name]) for name in common} == {name: plain(there[name]) for name in common}


def test_defaults_are_compared_at_all() -> None:
    shared = {name for command, function in CALLED for name in defaults(COMMANDS[command]).keys() & defaults(function)}
    assert {"save_every", "samples", "depths", "rounds", "budget", "heads", "rank"} <= shared


def test_an_animation_has_as_many_frames() -> None:
    assert defaults(COMMANDS["show"])["frames"] == defaults(frames)["count"]
