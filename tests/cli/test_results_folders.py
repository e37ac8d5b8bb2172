"""A folder holds the results of one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_posenc.cli.errors import BadArgument
from hf_posenc.cli.output_paths import RESULT_FILES, check_results_folder

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
    "reproduce": ("zero_shot_order", "--quick"),
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


def test_a_model_is_not_overwritten_by_a_run(call: Callable, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    answer = call("finetune", *COMMANDS["finetune"], "--out", str(tmp_path))
    assert answer.code == 2
    assert "holds a model" in answer.err
