"""What a patched model asks of a GPU, seen on a device without storage: a CPU shows nothing of it.

A value that Python reads from a GPU, or a constant that it copies there, waits for all kernels launched before; and a
kernel takes some microseconds to launch, however little it computes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, PreTrainedModel

from hf_posenc import list_schemes, patch_model
from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import by_device, flash_cuda
from hf_posenc.attention.routes import flex, flex_cuda
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.core import constants
from hf_posenc.errors import PosEncError

PACKAGE, TORCH = Path(patch_model.__code__.co_filename).parents[1], Path(torch.__file__).parent
READS = ("item", "tolist", "nonzero", "unique_consecutive", "__bool__", "__int__", "__float__", "__index__", "cpu")
WAITS = {
    "learned": "compares positions with the end of its table", "randpos": "likewise, and draws as many as it needs",
    "dynamic_ntk": "groups queries by their length", "dynamic_yarn": "likewise",
    "fire": "leaves out the units of its network that are linear on the text",
}  # fmt: skip
WITHIN, WHOLE = ("learned", "norm01"), ("norm01", "randpos")


class Waits(TorchFunctionMode):
    """Counts values read from the device, and copies to it, by the line of this package that asks."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        first = args[0] if args and isinstance(args[0], Tensor) else None
        line = line_of_package(sys._getframe(1))
        if line:
            made = name in ("tensor", "as_tensor", "new_tensor") and first is None and is_meta(kwargs.get("device"))
            moved = name in ("to", "copy_") and any(isinstance(a, Tensor) and is_meta(a.device) for a in args[1:])
            of_device = first is not None and first.is_meta
            read = of_device and (name in READS or (name == "__getitem__" and waits_for_index(args[1])))
            if (made and not line.startswith(constants.__file__)) or read or (moved and first.device.type == "cpu"):  # type: ignore[union-attr]
                self.found[f"{name} at {line}"] += 1
        return function(*args, **kwargs)


class Launches(TorchDispatchMode):
    """Counts operations that write: each is a kernel or more."""

    count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.count += not operator.is_view
        return operator(*args, **(kwargs or {}))


def waits_for_index(index: object) -> bool:
    """Whether an index must be read, as a mask is, or copied, as a list of numbers is."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, list) or (isinstance(part, Tensor) and part.dtype == torch.bool) for part in parts)


def is_meta(device: object) -> bool:
    return device is not None and torch.device(device).type == "meta"  # type: ignore[arg-type]


def line_of_package(frame: FrameType | None) -> str | None:
    """The innermost line outside torch, if it is one of this package."""
    while frame is not None and TORCH in Path(frame.f_code.co_filename).parents:
        frame = frame.f_back
    if frame is None or PACKAGE not in Path(frame.f_code.co_filename).parents or "/tests/" in frame.f_code.co_filename:
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of CUDA for such tensors; only the shapes of what they return are right."""

    def lse(query: Tensor) -> Tensor:
        return query.new_empty(query.shape[:3], dtype=torch.float32)

    def flexible(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Any:
        out = query[..., : value.shape[-1]] * 1
        return (out, SimpleNamespace(lse=lse(query))) if flex.ASK_FOR_LSE.keys() & settings.keys() else out

    def takes(call: AttentionCall) -> bool:
        on_device = call.values.device.type == "meta"  # the proof of effect runs on the CPU
        return on_device and call.mask is None and flex.refusal_reason(call) is None

    monkeypatch.setitem(by_device.BY_DEVICE, "meta", flash_cuda)
    monkeypatch.setattr(flash_cuda, "usable", lambda *tensors: True)
    monkeypatch.setattr(flash_cuda, "attend", lambda q, k, v, **settings: (q * 1, lse(q)))
    monkeypatch.setattr(flex, "kernel", lambda family: flexible)
    monkeypatch.setitem(dispatch.ROUTES, "flex_cuda", replace(flex_cuda.ROUTE, accepts=takes))


def patched(scheme: str) -> PreTrainedModel:
    model = tiny_model("llama")
    try:
        patch_model(model, scheme)
    except PosEncError as error:
        pytest.skip(f"not for Llama: {error}")
    return model.to("meta")


# Texts are read into a cache: without one transformers asks the device whether several are packed.
def text(length: int) -> Tensor:
    return torch.zeros(1, length, dtype=torch.long, device="meta")


@contextmanager
def waits() -> Iterator[Counter[str]]:
    with Waits() as mode:
        yield mode.found


@pytest.mark.parametrize("scheme", sorted(record.name for record in list_schemes() if record.name not in WAITS))
def test_reading_and_decoding_wait_for_nothing(scheme: str) -> None:
    model, cache = patched(scheme), DynamicCache()
    length = TRAINED_LENGTH if scheme in WITHIN else 3 * TRAINED_LENGTH
    with torch.no_grad(), waits() as found:
        model(text(length - 1), past_key_values=cache)
        if scheme not in WHOLE:
            model(text(1), past_key_values=cache)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("scheme", sorted(WAITS))
def test_a_wait_is_noticed(scheme: str) -> None:
    """Control, of the schemes that have a reason."""
    model = patched(scheme).train()
    with waits() as found, pytest.raises((RuntimeError, NotImplementedError)):  # a value that does not exist
        model(text(3 * TRAINED_LENGTH), past_key_values=DynamicCache())
    assert found


@pytest.mark.parametrize("scheme", ["rope", "yarn", "alibi", "t5", "rerope", "sinusoidal"])
def test_a_longer_text_launches_no_more_kernels(scheme: str) -> None:
    model = patched(scheme)

    def launched(length: int) -> int:
        with torch.no_grad(), Launches() as mode:
            model(text(length), past_key_values=DynamicCache())
        return mode.count

    launched(7000), launched(1000)  # what is made once
    assert launched(7000) == launched(1000)
