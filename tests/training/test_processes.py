"""Several processes train to the weights of one process with all their rows; launch configurations.

The processes are the CPU's and meet over gloo. accelerate shards parameters among accelerators only: for FSDP2 the
program tells it that these are some. DeepSpeed shards on CPUs as well, where it is installed.
"""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("accelerate", reason="launches are accelerate's")
pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from ..processes import ROOT
from ..processes import launch as launched

pytestmark = pytest.mark.slow

CONFIGURATIONS = ROOT / "examples" / "accelerate"
STEPS = 4
CLOSE = 1e-5
"""Sums in another order; weights move by 1e-2 a step."""

PROGRAM = '''
import json, os, sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from hf_posenc import patch_model
from hf_posenc.texts import TextSource
from hf_posenc.training import Training, finetune
from tests.training.test_finetune import TEXTS, bert, gpt2, llama, make_tokenizer

HOSTS = {
    "llama": llama, "gpt2": gpt2,
    "bert": lambda: bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
}


class Witness(TrainerCallback):
    """Which steps this process took, and how many others there were."""

    def __init__(self):
        self.steps, self.rows, self.world = [], [], 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(state.global_step)
        self.world = args.world_size

    def on_train_begin(self, args, state, control, model, train_dataloader, **kwargs):
        whole = train_dataloader.collate_fn
        def noting(rows):
            self.rows.extend(row["input_ids"].tolist() for row in rows)
            return whole(rows)
        train_dataloader.base_dataloader.collate_fn = noting


def train(case, batch, folder):
    """The result in ``folder``/result, and what this process saw."""
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    model = patch_model(HOSTS[case["family"]](), case["scheme"], factor=4)
    settings = {"length": 64, "steps": case["steps"], "learning_rate": 1e-2, "save_every": 2}
    settings |= {} if case.get("more", {}).get("method") == "full" else {"rank": 2}
    witness, source = Witness(), TextSource(tuple(TEXTS), streaming=case.get("streaming", False))
    tuned = finetune(
        model, tokenizer, source, Training(**settings, batch=batch, **case.get("more", {})), held_out=TEXTS[:1],
        out=Path(folder, "result"), callbacks=[witness], resume=case.get("resume", False),
    )
    return {
        "rank": int(os.environ.get("RANK", 0)), "world": witness.world, "steps": witness.steps, "rows": witness.rows,
        "kinds": sorted({type(p).__name__ for p in tuned.model.parameters()}),
        "curve": [point.to_dict() for point in tuned.curve],
    }


if __name__ == "__main__":
    if os.environ.get("TAKE_FOR_ACCELERATORS"):
        from accelerate import PartialState
        from accelerate.utils import DistributedType

        starting = PartialState.__init__

        def started(self, *args, **kwargs):
            starting(self, *args, **kwargs)
            if self.distributed_type == DistributedType.MULTI_CPU:
                self.distributed_type = DistributedType.MULTI_GPU

        PartialState.__init__ = started
    for name, case in json.loads(sys.argv[1]).items():
        folder = Path(sys.argv[2], name)
        folder.mkdir(exist_ok=True)
        seen = train(case, 1, folder)
        (folder / f"{seen['rank']}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()
'''


def case(family: str, scheme: str, steps: int = STEPS, **more: Any) -> dict[str, Any]:
    return {"family": family, "scheme": scheme, "steps": steps, "more": more}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    return file


def launch(configuration: str, program: Path, cases: dict[str, Any], folder: Path, **environment: str) -> None:
    """Train the cases in two processes."""
    words = ["--config_file", CONFIGURATIONS / configuration, program, json.dumps(cases), folder]
    launched(*words, PYTHONPATH=str(ROOT), **environment)


def alone(program: Path, one: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same case in this process, which reads the rows of both."""
    folder.mkdir(parents=True)
    return runpy.run_path(str(program))["train"](one, 2, folder)


def saved(folder: Path) -> dict[str, torch.Tensor]:
    """The weights in a finished folder, those of the scheme included where they are saved next to an adapter."""
    files = sorted((folder / "result").glob("*.safetensors"))
    assert files
    return {name: value for file in files for name, value in load_file(file).items()}


def farthest(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """The largest difference between two sets of weights."""
    assert one.keys() == two.keys()
    return max((one[name] - two[name]).abs().max().item() for name in one)


def check(folder: Path, one: dict[str, Any], alone_in: Path, alone_saw: dict[str, Any], kind: str) -> None:
    """Two processes, both at work on rows of their own, and the weights and the curve of one."""
    seen = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [(each["rank"], each["world"]) for each in seen] == [(0, 2), (1, 2)]
    assert all(each["steps"] == list(range(1, one["steps"] + 1)) for each in seen)
    assert all(kind in each["kinds"] for each in seen)
    count = one["steps"] * one["more"].get("accumulate", 1)  # accelerate reads one more ahead
    first, second = (each["rows"][:count] for each in seen)
    assert [row for pair in zip(first, second, strict=True) for row in pair] == alone_saw["rows"][: 2 * count]
    assert first != second
    assert farthest(saved(folder), saved(alone_in)) < CLOSE
    for ours, theirs in zip(seen[0]["curve"], alone_saw["curve"], strict=True):
        assert ours["step"] == theirs["step"]
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=CLOSE)
        assert ours["held_out"] == pytest.approx(theirs["held_out"], abs=CLOSE)


@pytest.mark.skipif(os.name != "posix", reason="process groups are ended by Unix signals")
def test_two_processes_train_to_the_weights_of_one(program: Path, tmp_path: Path) -> None:
    """A scheme that learns, one that rotates, a masked model, steps of several batches; as a control, another seed."""
    cases = {
        "learned": case("llama", "t5"),
        "rotating": case("llama", "yarn", accumulate=2, gradient_checkpointing=True),
        "masked": case("bert", "t5", accumulate=2),
    }
    other = case("llama", "t5", seed=1)
    streamed = case("llama", "t5") | {"streaming": True}
    launch("ddp.yaml", program, cases | {"other": other, "streamed": streamed}, tmp_path)
    for name, one in cases.items():
        seen = alone(program, one, tmp_path / "alone" / name)
        check(tmp_path / name, one, tmp_path / "alone" / name, seen, "Parameter")
    alone(program, streamed, tmp_path / "alone" / "streamed")
    assert farthest(saved(tmp_path / "streamed"), saved(tmp_path / "alone" / "streamed")) < CLOSE
    learned = saved(tmp_path / "learned")
    assert any("posenc" in name for name in learned)
    assert farthest(saved(tmp_path / "other"), learned) > 100 * CLOSE


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="process groups are ended by Unix signals")
def test_sharded_processes_train_to_the_weights_of_one(program: Path, tmp_path: Path) -> None:
    """FSDP2: schemes shared by all layers and of each layer, adapters and whole models; then a run that goes on."""
    cases = {
        "shared": case("llama", "t5"),
        "layers": case("llama", "kerple", gradient_checkpointing=True),
        "gpt2": case("gpt2", "t5"),
        "full": case("llama", "t5", method="full"),
    }
    launch("fsdp2.yaml", program, cases, tmp_path, TAKE_FOR_ACCELERATORS="1")
    for name, one in cases.items():
        seen = alone(program, one, tmp_path / "alone" / name)
        check(tmp_path / name, one, tmp_path / "alone" / name, seen, "DTensor")
    before = saved(tmp_path / "shared")
    for name in (f"checkpoint-{STEPS}/complete.json", "adapter_model.safetensors"):
        (tmp_path / "shared" / "result" / name).unlink()
    launch("fsdp2.yaml", program, {"shared": cases["shared"] | {"resume": True}}, tmp_path, TAKE_FOR_ACCELERATORS="1")
    assert json.loads((tmp_path / "shared" / "0.json").read_text())["steps"] == [3, 4]
    assert farthest(saved(tmp_path / "shared"), before) < CLOSE
