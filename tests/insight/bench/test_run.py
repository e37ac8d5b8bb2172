"""A whole benchmark on an emulated device with its own time and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import PreTrainedModel

from hf_posenc import load_starter
from hf_posenc.errors import AlreadyPatched, LengthContradiction, OptionOutOfRange, UnknownScheme
from hf_posenc.insight.bench import BenchCell, bench, random_model
from hf_posenc.insight.bench import run as measuring
from hf_posenc.insight.bench.devices import Elapsed
from hf_posenc.insight.bench.models import PATCHED
from hf_posenc.insight.bench.results import remarks
from hf_posenc.patching.patch import patch_model


class Counter(TorchDispatchMode):
    """Counts the arithmetic of everything that runs inside it, and the numbers of the largest tensor made."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.largest = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if func.overloadpacket in flop_registry:
            self.operations += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        elif torch.Tag.pointwise in func.tags:
            self.operations += sum(x.numel() for x in made if x.is_floating_point())
        self.largest = max([self.largest, *(x.numel() for x in made)])
        return out


class Metered:
    """A device that counts what torch is asked to do: seconds are operations, bytes those of the largest tensor."""

    torch = torch.device("cpu")
    name = "metered"

    def clock(self, run: Callable[[], None]) -> Elapsed:
        with Counter() as counter:
            run()
        return Elapsed(float(counter.operations), float(counter.operations))

    def peak(self, run: Callable[[], None]) -> int:
        with Counter() as counter:
            run()
        return 4 * counter.largest


@pytest.fixture(autouse=True)
def metered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "device_of", lambda name: Metered())


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return random_model((1, 32, 2, 2), 64, torch.float32)


def measured(model: PreTrainedModel, schemes: str, lengths: list[int], **more: Any) -> list[BenchCell]:
    return list(bench(model, schemes, lengths, **{"rounds": 2, **more}))


def test_all_scores_are_seen_in_memory_and_time(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a model that is known to use more memory must be measured so."""
    (lean,) = measured(model, "alibi", [512])
    real = measuring.variant

    def holding_scores(model: PreTrainedModel, role: str, *given: Any) -> PreTrainedModel:
        chosen = real(model, role, *given)
        chosen.set_attn_implementation("eager" if role == PATCHED else "sdpa")
        return chosen

    monkeypatch.setattr(measuring, "variant", holding_scores)
    (naive,) = measured(model, "alibi", [512])
    assert naive.models[PATCHED].memory >= 2 * 512**2 * 4 > lean.models[PATCHED].memory
    assert naive.memory_ratio() > 2 * lean.memory_ratio()
    assert naive.time_ratio().median > lean.time_ratio().median


def test_a_slow_model_is_measured_as_slow(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the same prefill three times over."""
    real = measuring.CASES["prefill"]

    class Thrice(real):  # type: ignore[misc,valid-type]
        def call(self) -> None:
            for _ in range(3 if "Patched" in str(self.module) else 1):
                super().call()

    honest = measured(model, "yarn", [128])[0].time_ratio().median
    monkeypatch.setitem(measuring.CASES, "prefill", Thrice)
    assert measured(model, "yarn", [128])[0].time_ratio().median == pytest.approx(3 * honest, rel=1e-6)


def test_a_refused_scheme_is_a_cell_and_the_others_go_on() -> None:
    bert = load_starter("bert")[0]
    refused, done = measured(bert, "sinks,alibi", [32])
    assert (refused.state, done.state) == ("refused", "done")
    assert "sinks" in refused.why_not
    assert "refused" in remarks([refused])[0]


def test_an_error_on_the_way_is_a_cell(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(measuring.CASES["prefill"]):  # type: ignore[misc,name-defined]
        def call(self) -> None:
            raise RuntimeError("out of memory")

    monkeypatch.setitem(measuring.CASES, "prefill", Broken)
    (cell,) = measured(model, "yarn", [32])
    assert (cell.state, cell.why_not) == ("failed", "RuntimeError: out of memory")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"lengths": []}, OptionOutOfRange), ({"lengths": [1]}, OptionOutOfRange), ({"rounds": 0}, OptionOutOfRange),
        ({"cases": ("reading",)}, OptionOutOfRange), ({"schemes": "unpatched"}, OptionOutOfRange),
        ({"compile": True, "cases": ("decode",)}, OptionOutOfRange), ({"schemes": "yarm"}, UnknownScheme),
        ({"factor": 0.5}, LengthContradiction),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_settings_are_refused(model: PreTrainedModel, wrong: dict[str, Any], error: type[Exception]) -> None:
    asked = {"schemes": "yarn", "lengths": [32], **wrong}
    with pytest.raises(error):  # before anything is timed
        bench(model, asked.pop("schemes"), asked.pop("lengths"), **asked)


def test_unsuitable_models_are_refused() -> None:
    with pytest.raises(OptionOutOfRange, match="no cache"):
        bench(load_starter("bert")[0], "rope", [32], cases=("decode",))
    with pytest.raises(AlreadyPatched):
        bench(patch_model(random_model((1, 32, 2, 2), 64, torch.float32), "yarn", factor=2), "yarn", [32])


@pytest.mark.parametrize("case", ["prefill", "train"])
def test_both_models_of_a_compiled_run_are_compiled(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, Any]] = []

    def spied(module: nn.Module, **options: Any) -> None:
        compiled.append((type(module).__name__, options["dynamic"]))

    monkeypatch.setattr(nn.Module, "compile", spied)
    model = random_model((1, 32, 2, 2), 64, torch.float32)
    for compile in (True, False):
        (cell,) = measured(model, "yarn", [32], cases=(case,), compile=compile)
        assert cell.state == "done"
    assert compiled == [("LlamaForCausalLM", True)] * 2
