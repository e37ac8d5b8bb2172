"""``kill -9`` loses only the steps since the last checkpoint."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from transformers import TrainerCallback

from hf_posenc import patch_model

from ..processes import LIMIT, ROOT, finish, start
from .test_finetune import FACTOR, TEXTS, bert, llama, make_tokenizer, run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are POSIX's")]
PROGRAM = ("-m", "tests.training.test_killed")
STEPS, EVERY = 6, 2


class Steps(TrainerCallback):
    """Notes every step that is done, and waits for its end before step ``stop``."""

    def __init__(self, file: Path, stop: int | None) -> None:
        self.file, self.stop = file, stop

    def on_log(self, args, state, control, logs, **kwargs) -> None:
        if "loss" in logs:
            with self.file.open("a") as file:
                file.write(json.dumps([state.global_step, logs["loss"]]) + "\n")

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if state.global_step == self.stop:
            print("waiting", flush=True)  # noqa: T201
            time.sleep(LIMIT)


def train(family: str, folder: Path, *, resume: bool = False, stop: int | None = None) -> None:
    """Weights and curve in ``folder``, losses as they are logged next to it; dropout and masks are drawn at random."""
    model = llama(attention_dropout=0.1) if family == "llama" else bert()
    texts = [text[: len(text) // 4] for text in TEXTS[:2]]  # fewer rows than steps: two epochs
    run(
        patch_model(model, "t5", factor=FACTOR), make_tokenizer(), texts, steps=STEPS, save_every=EVERY, out=folder,
        resume=resume, callbacks=[Steps(folder.with_suffix(".steps"), stop)],
    )  # fmt: skip


def losses(folder: Path) -> list[list[float]]:
    return [json.loads(line) for line in folder.with_suffix(".steps").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("family", ["llama", pytest.param("bert", marks=pytest.mark.full)])
def test_killed_from_outside_and_resumed(family: str, tmp_path: Path) -> None:
    """Struck in its sixth step, it goes on from the fourth, with the same losses; dropout, masks and order included."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    victim = start([*PROGRAM, family, killed, "stop"], cwd=ROOT)
    assert victim.stdout is not None
    assert victim.stdout.readline().strip() == "waiting"
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    train(family, whole)
    assert [step for step, _ in losses(killed)] == [1, 2, 3, 4, 5]
    finish(start([*PROGRAM, family, killed, "resume"], cwd=ROOT))
    resumed = losses(killed)[5:]
    assert [step for step, _ in resumed] == [5, 6]
    resumed = losses(killed)[:4] + resumed
    assert [loss for _, loss in resumed] == pytest.approx([loss for _, loss in losses(whole)], abs=1e-6)
    curves = [json.loads((folder / "curve.json").read_text(encoding="utf-8")) for folder in (killed, whole)]
    assert [point["step"] for point in curves[0]] == [1, 2, 3, 4, 5, 6]
    assert [point["loss"] for point in curves[0]] == pytest.approx([p["loss"] for p in curves[1]], abs=1e-6)


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    train(what, Path(where), resume="resume" in rest, stop=5 if "stop" in rest else None)
