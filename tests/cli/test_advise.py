"""``hf-posenc advise``: output, exit codes, and that the printed commands are valid."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest
import typer

from hf_posenc.cli.app import app


def test_the_text_names_the_length_and_the_call(call: Callable) -> None:
    answer = call("advise", "-m", "starter:llama", "--target-length", "2k")
    assert answer.code == 0
    assert answer.out.startswith("starter:llama (llama) at 2,048 tokens\n")
    assert 'patch_model(model, "self_extend", target_length=2048, group=' in answer.out
    assert answer.err == ""


@pytest.mark.parametrize("starter", ["llama", "gpt2", "bert"])
def test_printed_commands_are_commands(call: Callable, starter: str) -> None:
    """Parsed by the very commands they name, without running them."""
    advice = call("advise", "-m", f"starter:{starter}", "--target-length", "1024", "--json").data
    known = typer.main.get_command(app).commands
    lines = [
        one[name] for one in advice["zero_shot"] + advice["training"] for name in ("compare", "finetune") if name in one
    ]
    assert lines
    for line in lines:
        program, name, *words = shlex.split(line)
        assert program == "hf-posenc"
        if name in known:
            known[name].make_context(name, words)


def test_cards_have_a_plan_in_text_and_json(call: Callable) -> None:
    pytest.importorskip("peft", reason="an extra")
    words = ("advise", "-m", "starter:llama", "--target-length", "1024", "--gpu", "24")
    told = " ".join(call(*words).out.replace("\\\n", " ").split())
    assert all(command in told for command in call(*words, "--json").data["plan"]["commands"])
