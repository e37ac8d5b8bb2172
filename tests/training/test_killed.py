"""``kill -9`` loses only the steps since the last checkpoint."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are POSIX's")]

STEPS, EVERY = 6, 2
LIMIT = 1200
"""Seconds; a run takes a few on an idle machine."""

PROGRAM = (
    f"STEPS, EVERY, LIMIT = {STEPS}, {EVERY}, {LIMIT}\n"
    + '''
import json, sys, time
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers import TrainerCallback

from hf_posenc import patch_model
from hf_posenc.training import Training, finetune

WORDS = ["<pad>", "<end>", "<mask>", "<unk>", *(f"w{i}" for i in range(28))]
TEXTS = [" ".join(f"w{(i * i + j) % 28}" for i in range(150)) for j in range(2)]  # fewer rows than steps: two epochs


def tiny_model(family):
    torch.manual_seed(0)
    if family == "bert":  # its masks and its dropout are drawn at random
        return BertForMaskedLM(BertConfig(
            vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=16,
        ))
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, attention_dropout=0.1,
    ))


class Steps(TrainerCallback):
    """Notes every step that is done, and waits for its end after the last it may do."""

    def __init__(self, file, stop):
        self.file, self.stop = file, stop

    def on_log(self, args, state, control, logs, **kwargs):
        if "loss" in logs:
            with open(self.file, "a") as file:
                file.write(json.dumps([state.global_step, logs["loss"]]) + "\\n")

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.stop:
            print("waiting", flush=True)
            time.sleep(LIMIT)


def train(family, folder, resume=False, stop=None):
    """Weights and curve in ``folder``, losses as they are logged next to it."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", mask_token="<mask>", unk_token="<unk>"
    )
    settings = Training(length=64, steps=STEPS, learning_rate=1e-2, rank=2, save_every=EVERY)
    torch.manual_seed(0)
    finetune(
        patch_model(tiny_model(family), "t5", factor=4), tokenizer, TEXTS, settings, out=folder, resume=resume,
        callbacks=[Steps(folder.with_suffix(".steps"), stop)],
    )


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    train(what, Path(folder), resume="resume" in rest, stop=5 if "stop" in rest else None)
'''
)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    return file


def start(*words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


def finish(process: subprocess.Popen) -> str:
    """Standard output of a program that ends well."""
    try:
        output, errors = process.communicate(timeout=LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, errors[-3000:]
    return output


def losses(folder: Path) -> list[list[float]]:
    return [json.loads(line) for line in folder.with_suffix(".steps").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("family", ["llama", pytest.param("bert", marks=pytest.mark.full)])
def test_killed_from_outside_and_resumed(family: str, program: Path, tmp_path: Path) -> None:
    """Struck in its sixth step, it goes on from the fourth, with the same losses; dropout, masks and order included."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    victim = start(str(program), family, str(killed), "stop")
    assert victim.stdout is not None
    assert victim.stdout.readline().strip() == "waiting"
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    runpy.run_path(str(program))["train"](family, whole)
    assert [step for step, _ in losses(killed)] == [1, 2, 3, 4, 5]
    finish(start(str(program), family, str(killed), "resume"))
    resumed = losses(killed)[5:]
    assert [step for step, _ in resumed] == [5, 6]
    resumed = losses(killed)[:4] + resumed
    assert [loss for _, loss in resumed] == pytest.approx([loss for _, loss in losses(whole)], abs=1e-6)
    curves = [json.loads((folder / "curve.json").read_text(encoding="utf-8")) for folder in (killed, whole)]
    assert [point["step"] for point in curves[0]] == [1, 2, 3, 4, 5, 6]
    assert [point["loss"] for point in curves[0]] == pytest.approx([p["loss"] for p in curves[1]], abs=1e-6)
