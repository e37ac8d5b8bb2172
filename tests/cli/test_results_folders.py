"""A folder holds the results of one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.output_paths import RESULT_FILES, UNFINISHED, check_results_folder
from hf_posenc.eval.results.record import Record
from hf_posenc.eval.results.store import Store

LLAMA = ("-m", "starter:llama")
COMMANDS = {
    "finetune": (*LLAMA, "-s", "yarn", "-f", "2"),
    "find-learning-rate": (*LLAMA, "-s", "yarn", "-f", "2"),
    "compare": (*LLAMA, "-s", "yarn"),
    "leaderboard": (),
    "search": (*LLAMA, "-t", "512"),
    "bench": ("-s", "yarn"),
    "probe": LLAMA,
    "demo": ("--quick",),
    "advise": (*LLAMA, "-t", "512", "--measure"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_results_of_another_command_are_not_mixed_with(call: Callable, tmp_path: Path, command: str) -> None:
    other = "probe" if command in ("finetune", "find-learning-rate") else "finetune"
    (tmp_path / RESULT_FILES[other]).write_text("{}")
    answer = call(command, *COMMANDS[command], "--out", str(tmp_path))
    assert answer.code == 2
    assert f"holds results of hf-posenc {other}" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == [RESULT_FILES[other]]


@pytest.mark.parametrize("owner", RESULT_FILES)
@pytest.mark.parametrize("command", RESULT_FILES)
def test_in_both_directions(tmp_path: Path, owner: str, command: str) -> None:
    (tmp_path / RESULT_FILES[owner]).write_text("{}")
    if owner == command:
        check_results_folder(command, tmp_path)
        return
    with pytest.raises(BadArgument, match=f"holds results of hf-posenc {owner}"):
        check_results_folder(command, tmp_path)


@pytest.mark.parametrize("owner", UNFINISHED)
@pytest.mark.parametrize("command", RESULT_FILES)
def test_an_interrupted_run_owns_its_folder(tmp_path: Path, owner: str, command: str) -> None:
    left = tmp_path / UNFINISHED[owner].replace("*", "x")
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text("{}")
    if owner == "search":
        (tmp_path / UNFINISHED["compare"]).write_text("")
    if owner == command:
        check_results_folder(command, tmp_path)
        return
    with pytest.raises(BadArgument, match=f"holds an unfinished run of hf-posenc {owner}"):
        check_results_folder(command, tmp_path)


@pytest.mark.parametrize("command", ["compare", "search", "leaderboard"])
def test_what_an_interrupted_run_leaves(
    call: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Stopped when the first cell has been stored."""
    put = Store.put

    def interrupted(store: Store, record: Record) -> None:
        put(store, record)
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "put", interrupted)
    small = {"search": ("--budget", "1m"), "compare": ("-l", "64"), "leaderboard": ("--quick", "-m", "starter:llama")}
    answer = call(command, *COMMANDS[command], *small[command], "--out", str(tmp_path))
    assert "resume with" in answer.err
    check_results_folder(command, tmp_path)
    with pytest.raises(BadArgument, match=f"unfinished run of hf-posenc {command}"):
        check_results_folder("probe", tmp_path)


def test_a_model_is_not_overwritten_by_a_run(call: Callable, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    answer = call("finetune", *COMMANDS["finetune"], "--out", str(tmp_path))
    assert answer.code == 2
    assert "holds a model" in answer.err
