"""Real faults in separate processes: killed, interrupted, disk full, out of memory, two at once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ..processes import end, start

pytest.importorskip("lm_eval", reason="comparisons need the extra `eval`")
pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
pytest.importorskip("matplotlib", reason="plots need the extra `plot`")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="fork, signals and limits are POSIX's"),
]

LIMIT = 3600
"""Seconds; a command takes five on an idle machine, and the harness, which runs many, a hundred."""


def write_model(folder: Path) -> Path:
    """A tiny Llama with a tokenizer that reads every byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={"<end>": 0, **{c: i + 1 for i, c in enumerate(alphabet)}}, merges=[]))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<end>", eos_token="<end>", pad_token="<end>")
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(alphabet) + 1, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256, bos_token_id=0, eos_token_id=0,
            pad_token_id=0, initializer_range=0.3,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


HARNESS = Path(__file__).parent / "harness.py"
Found = dict[str, Any]


def played(folder: Path, *scenarios: str) -> Found:
    """What came of each scenario."""
    write_model(folder / "model")
    lines = (f"Line {i} says {i * i % 97} and nothing else.\n" for i in range(6000))
    (folder / "text.txt").write_text("".join(lines))
    code, out, err = end(start([HARNESS, folder, *scenarios]), LIMIT)
    assert code == 0, err[-3000:]
    found: Found = {}
    for line in out.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    for name, one in found.items():
        assert not (isinstance(one, dict) and "crashed" in one), f"{name}: {one['crashed']}"
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return played(
        tmp_path_factory.mktemp("faults"),
        *("kills=3", "full", "two_writers", f"stopped_tuning={signal.SIGTERM:d}"),
    )


def plain(err: str) -> str:
    """The one error of a command, in sentences and without a traceback."""
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, err
    assert errors[0].count(". ") >= 1 or "; resume with" in errors[0], "what happened, and what to do"
    return errors[0]


def test_killed_while_comparing(found: Found) -> None:
    rounds = found["kills=3"]
    assert len(rounds) == 3
    for one in rounds:
        assert one["second"] == 0
        assert one["measured again"] == 0
        assert one["same"], "results are those of an uninterrupted run, byte for byte"
        assert one["stray"] == []
    assert any(one["first"] == -signal.SIGKILL for one in rounds), "control: somebody was killed"


def test_a_signal_while_fine_tuning(found: Found) -> None:
    first, second, deviation, half = found[f"stopped_tuning={signal.SIGTERM:d}"]
    assert first["code"] == 143
    assert plain(first["err"]).endswith("--resume")
    assert "curve.json" not in half
    assert second["code"] == 0
    assert deviation <= 1e-6


@pytest.mark.parametrize("command", ["compare", "finetune", "eval", "export"])
def test_no_file_has_room(found: Found, command: str) -> None:
    one = found["full"][command]
    assert one["code"] == 1
    assert "space" in plain(one["err"]) or "disk" in plain(one["err"])
    # `Trainer`'s own checkpoint, passed over because it has no manifest; a store without cells, which is opened again
    allowed = ["checkpoint-2", "run.json", "cells.sqlite"]
    assert [name for name in one["left"] if name not in allowed] == []


@pytest.mark.parametrize("command", ["compare", "finetune"])
def test_two_at_once(found: Found, command: str) -> None:
    """The first one succeeds, the second gets an error; no cell is lost, and none measured by both."""
    first, second = found["two_writers"][command]
    assert first["code"] == 0
    assert second["code"] == 1
    assert "another" in plain(second["err"]).lower()
    assert found["two_writers"]["cells"] == 6
