"""What fits on cards, against the memory of a step counted at that length; and the commands, parsed and run."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from transformers import GPT2Config, LlamaConfig

from hf_posenc import advise
from hf_posenc.cli.app import app
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.advise.memory import skeleton, training_memory
from hf_posenc.insight.advise.plan import SHARE, STEP, Cards, Plan

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

GIB = 1024**3


def tiny(**changed: Any) -> LlamaConfig:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    heads = {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 256}
    return LlamaConfig(**(shape | heads | {"architectures": ["LlamaForCausalLM"], "rope_theta": 5e5} | changed))


def planned(config: Any, target: int, gpu: str | float, **more: Any) -> Plan:
    plan = advise(config, target, gpu=gpu, name="some/model", **more).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize(("written", "count", "memory"), [("80", 1, 80), (24, 1, 24), ("8x80", 8, 80), (0.5, 1, 0.5)])
def test_cards_are_read(written: Any, count: int, memory: float) -> None:
    assert Cards.of(written) == Cards(count, int(memory * GIB))


@pytest.mark.parametrize("written", ["", "0", "0x80", "8x", "80GB", "-80", "x80", "8x0", True, "1e3"])
def test_what_names_no_cards_is_refused(written: Any) -> None:
    with pytest.raises(OptionOutOfRange, match="8x80"):
        Cards.of(written)


def test_the_longest_row_is_the_longest_that_fits() -> None:
    """Counted anew at that length, and at the next."""
    target, memory = 8192, 0.05
    plan = planned(tiny(), target, memory)
    assert [(way.dtype, way.checkpointing) for way in plan.fits] == [
        ("bfloat16", False), ("bfloat16", True), ("4bit", False), ("4bit", True),
    ]  # fmt: skip
    for way in plan.fits:

        def needed(length: int, way: Any = way) -> int:
            step = training_memory(skeleton(tiny(), "bfloat16"), length)
            assert step is not None
            total = step.total_checkpointed if way.checkpointing else step.total
            return total - (step.weights - step.four_bit if way.dtype == "4bit" else 0)

        assert 0 < way.longest < target
        assert needed(way.longest) <= SHARE * memory * GIB < needed(way.longest + STEP)
        assert way.needed == needed(target)
    assert plan.row == max(way.longest for way in plan.fits)
    assert f"--set length={plan.row}" in plan.commands[0]


def test_what_fits_is_trained_the_quickest_way() -> None:
    plan = planned(tiny(), 1024, 80)
    assert {way.longest for way in plan.fits} == {plan.row} == {plan.served} == {1024}
    assert "--dtype bfloat16" in plan.commands[0]
    assert not {"gradient_checkpointing=true", "4bit"} & set(shlex.split(plan.commands[0]))
    assert "length=" not in plan.commands[0]


def test_no_command_where_no_row_fits() -> None:
    plan = planned(tiny(), 1024, 0.001)
    assert (plan.row, plan.commands) == (0, ())


def test_cards_share_a_row_where_the_scheme_can() -> None:
    one, eight = (planned(tiny(), 8192, gpu) for gpu in ("0.03", "8x0.03"))
    assert (one.shared, eight.shared) == (False, True)
    assert one.row < eight.row == 8192
    whole = planned(tiny(), 64 * 256, "8x80")  # as far as PoSE was shown, on rows of the trained length
    assert (whole.scheme, whole.shared, whole.row) == ("yarn+pose", False, 256)
    assert whole.commands[0].startswith("accelerate launch --num_processes 8 -m hf_posenc.cli finetune --model ")
    assert "--set length=256 " in whole.commands[0]


def test_a_scheme_of_this_package_alone_is_exported_with_its_code() -> None:
    table = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, architectures=["GPT2LMHeadModel"])
    commands = planned(table, 1024, "8x80").commands
    assert "--base runs/model/model" in commands[2]
    assert "--to bundle" in commands[-1]
    assert not any("vllm" in line for line in commands)


@pytest.mark.parametrize("gpu", ["80", "8x80"])
def test_commands_are_commands(gpu: str) -> None:
    """Parsed by the very commands they name."""
    known = typer.main.get_command(app).commands
    names = []
    for line in planned(tiny(), 1024, gpu).commands:
        program, name, *words = shlex.split(line)
        if program == "hf-posenc":
            known[name].make_context(name, words)
        names.append(name if program == "hf-posenc" else program)
    start = ["(cd"] if gpu == "8x80" else []
    assert names == ["finetune", *start, "merge", "eval", "export", "vllm"]


def test_a_scaled_model_names_its_trained_length() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 2.0, "original_max_position_embeddings": 128}
    plan = planned(tiny(rope_parameters=rope), 1024, "8x80")
    named = ["--option trained_length=128" in command for command in plan.commands]
    assert named == [True, False, False, True, True, False]  # not to TRL, merge and vLLM


def test_where_nothing_is_trained_there_is_no_plan() -> None:
    advice = advise(tiny(), 128, gpu=80)
    assert advice.plan is None
    assert any("no plan" in warning for warning in advice.warnings)
    assert advise(tiny(), 1024).plan is None


def test_a_row_that_fits_nowhere_is_a_warning() -> None:
    """On the cards that were named; what fits, or fits in parts, is none."""
    said = {gpu: advise(tiny(), 8192, gpu=gpu).warnings for gpu in ("0.005", "80")}
    assert {gpu: any("Training a row of 8,192" in one for one in found) for gpu, found in said.items()} == {
        "0.005": True, "80": False,
    }  # fmt: skip


def test_so_is_one_that_this_machine_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_posenc.insight.advise.memory.main_memory", lambda: 1 << 24)
    monkeypatch.setattr("hf_posenc.insight.advise.memory.gpu_memory", lambda: None)
    assert any("A LoRA step on a row of 8,192" in one for one in advise(tiny(), 8192).warnings)
