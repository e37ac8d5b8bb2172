"""``hf-posenc advise``: output, exit codes, and that the printed commands are valid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from itertools import pairwise

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


def test_one_printed_command_compares_what_is_listed(call: Callable) -> None:
    pytest.importorskip("lm_eval", reason="an extra")
    from hf_posenc.schemes.entry import entries_of

    answer = call("advise", "-m", "starter:llama", "--target-length", "1024")
    words = shlex.split(answer.out.partition("\nTry\n")[2].replace("\\\n", ""))
    read = entries_of(",".join(value for name, value in pairwise(words) if name == "--schemes"))
    listed = re.findall(r"^  \d  (\S+) ", answer.out.partition("With training")[0], flags=re.MULTILINE)
    assert [entry.scheme for entry in read] == [None, *listed]
    assert len(read) == 5
