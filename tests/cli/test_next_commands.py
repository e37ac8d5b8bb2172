"""Each command prints the next ones, and they work as they are printed: from fine-tune to plain transformers."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from hf_posenc import describe, from_pretrained, load_starter, patch_model
from hf_posenc.cli.app import app
from hf_posenc.cli.next_commands import scheme_to_compare

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
SHORT = ["--steps", "2", "--set", "length=128", "--set", "eval_lengths=64"]


def printed(text: str) -> list[list[str]]:
    """The commands after ``Next:``, as words."""
    _, found, lines = text.partition("Next:\n")
    assert found, text
    return [shlex.split(line) for line in lines.splitlines() if line.startswith("  ")]


def named(words: list[list[str]]) -> list[str]:
    return [line[1] for line in words]


@pytest.fixture
def tuned(
    call: Callable, small_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[list[str]]]:
    """Fine-tunes a small Llama into ``a run``, and gives the commands that are printed."""
    monkeypatch.chdir(tmp_path)

    def run(scheme: str, *more: str) -> list[list[str]]:
        answer = call("finetune", "-m", str(small_llama), "-s", scheme, "-f", "2", "--out", "a run", *SHORT, *more)
        assert answer.code == 0, answer.err
        return printed(answer.out)

    return run


def test_from_fine_tune_to_plain_transformers(tuned: Callable, call: Callable) -> None:
    after_tuning = tuned("yarn")
    assert named(after_tuning) == ["eval", "compare", "merge"]
    for _, command, *words in after_tuning:
        COMMANDS[command].make_context(command, list(words))
    merged = call(*after_tuning[-1][1:])
    assert merged.code == 0, merged.err
    after_merge = printed(merged.out)
    assert named(after_merge) == ["eval", "export"]
    exported = call(*after_merge[-1][1:])
    assert exported.code == 0, exported.err
    ((_, flag, program),) = printed(exported.out)
    done = subprocess.run([sys.executable, flag, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.partition("LlamaConfig ")[2])["rope_parameters"]["rope_type"] == "yarn"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["yarn", "dca", "t5"])
def test_every_printed_command_works(scheme: str, tuned: Callable, call: Callable) -> None:
    left = tuned(scheme)
    seen = []
    while left:
        program, command, *words = left.pop(0)
        if program == "python":
            subprocess.run([sys.executable, command, *words], check=True, capture_output=True)
            continue
        answer = call(command, *words)
        assert answer.code == 0, answer.err
        seen.append(command)
        left += printed(answer.out) if "Next:" in answer.out else []
    assert seen == ["eval", "compare", "merge", "eval"] + (["export"] if scheme == "yarn" else [])
    assert describe(from_pretrained("a run-merged")).scheme == scheme


def test_virtual_tokens_are_not_merged(tuned: Callable) -> None:
    assert named(tuned("yarn", "--method", "prompt", "--set", "rank=2")) == ["eval", "compare"]


def test_the_base_may_be_given(tuned: Callable, call: Callable, small_llama: Path, tmp_path: Path) -> None:
    """An adapter whose base has moved: refused with the option's name, and found with it."""
    tuned("yarn")
    file = tmp_path / "a run" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": "/moved/away"}))
    words = ["eval", "-m", "a run", "-l", "128", "-t", "posenc_ppl", "--samples", "1", "--json"]
    lost = call(*words)
    assert lost.code == 1
    assert "--base" in lost.err
    found = call(*words, "--base", str(small_llama))
    assert found.code == 0, found.err
    assert found.data[0]["scheme"] == "yarn"


def test_commands_take_a_checkpoint_with_a_scheme(tuned: Callable, call: Callable) -> None:
    assert named(tuned("yarn", "--method", "full")) == ["eval", "compare", "export"]
    checked = call("check", "-m", "a run", "-s", "rerope", "-f", "2", "-c", "identity", "--json")
    assert checked.code == 0, checked.err
    assert "carries scheme yarn, which was removed first" in checked.err
    timed = call("bench", "-m", "a run", "-s", "alibi", "-l", "32", "--rounds", "1", "--json")
    assert timed.code == 0, timed.err
    assert "removed first" in timed.err
    words = ("-l", "128", "--samples", "2", "-t", "posenc_ppl", "--json")
    compared = call("compare", "-m", "a run", "-s", "unpatched,rerope,none", *words, "--out", "compared")
    assert compared.code == 0, compared.err
    assert [one["label"] for one in compared.data["about"]["schemes"]] == ["yarn (as saved)", "rerope", "none"]
    values = {row["scheme"]: row["value"] for row in compared.data["rows"] if row["metric"] == "nll"}
    alone = call("eval", "-m", "a run", *words)
    assert alone.code == 0, alone.err
    assert values["yarn (as saved)"] == next(row["value"] for row in alone.data if row["metric"] == "nll")
    assert len(set(values.values())) == 3


@pytest.mark.parametrize(
    ("starter", "own", "proposed"),
    [
        ("llama", "yarn", "rerope"), ("llama", "rerope", "yarn"), ("llama", "t5", "rerope"),
        ("bert", "alibi", "learned_interp"), ("bert", "learned_interp", "alibi"), ("gpt2", "t5", "learned_interp"),
    ],
)  # fmt: skip
def test_a_rotation_is_proposed_only_to_a_model_that_was_trained_with_one(
    starter: str, own: str, proposed: str
) -> None:
    model, _ = load_starter(starter)
    assert scheme_to_compare(patch_model(model, own, factor=2)) == proposed
