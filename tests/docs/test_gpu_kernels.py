"""The table of GPU kernels in the guide to speed is what the engine would choose there.

Calls of a patched model are looked at on the way into the engine, and routed as if their tensors were on a GPU: kernels
of processors refuse them, and those of CUDA take what they take. No kernel runs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hf_posenc import list_schemes, patch_model
from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import by_device, flash_cpu, flash_cuda
from hf_posenc.attention.route import Compute
from hf_posenc.attention.routes import flex, flex_cuda
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import PosEncError

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "speed.md"
KERNELS = {
    "the model's own": set(), "`_flash_attention_forward`": {"regions_cuda"}, "`flex_attention`": {"flex_cuda"},
    "two products": {"decode_cuda"},
    "blocks in float32": {"dense_blocks"}, "`_flash_attention_forward`, for each length": {"length_rotation"},
}  # fmt: skip
"""As the page names them, and the routes that call them."""
RECIPES = {"cape", "pose", "randpos", "shape"}  # change positions while training, and bring no kernel of their own
Kernels = tuple[str, str]


def section() -> str:
    return PAGE.read_text(encoding="utf-8").split("## On a GPU\n")[1].split("\n## ")[0]


def table() -> dict[str, Kernels]:
    """Scheme to the kernels that read with it and that decode."""
    rows = [line.strip("| ").split(" | ") for line in section().splitlines() if line.startswith("|")][2:]
    return {name: (reading, decoding) for _, names, reading, decoding in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Where calls would go on a GPU, as they are made."""
    found: set[str] = set()
    computed = dispatch._prepared

    def as_on_a_gpu(call: AttentionCall) -> Compute:
        with monkeypatch.context() as there:
            there.setattr(by_device, "BY_DEVICE", {"cpu": flash_cuda})
            there.setattr(flash_cuda, "usable", lambda *tensors: True)
            there.setattr(flash_cpu, "usable", lambda *tensors: False)
            there.setitem(dispatch.ROUTES, "flex_cuda", replace(flex_cuda.ROUTE, accepts=takes))
            found.add(dispatch.route(call))
        return computed(call)

    def takes(call: AttentionCall) -> bool:
        return call.mask is None and flex.unable(replace(call, values=call.values.to("meta"))) is None

    monkeypatch.setattr(dispatch, "_prepared", as_on_a_gpu)
    return found


@pytest.mark.parametrize("scheme", sorted(table()))
def test_the_kernels_of_a_scheme(scheme: str, routes: set[str]) -> None:
    model = tiny_model("llama")
    patch_model(model, scheme, factor=None if scheme in ("learned", "norm01") else 4)
    routes.clear()  # of the proof of effect
    length = TRAINED_LENGTH if scheme in ("learned", "norm01") else 3 * TRAINED_LENGTH
    tokens = torch.randint(90, (2, length))
    reading, decoding = (KERNELS[name] for name in table()[scheme])
    model.train()(tokens)
    assert routes == reading
    routes.clear()
    with torch.no_grad():
        try:
            cache = model.eval()(tokens[:, :-1], use_cache=True).past_key_values
            assert routes == reading
            routes.clear()
            model(tokens[:, -1:], past_key_values=cache)
        except PosEncError:
            assert scheme == "norm01", "it alone needs whole texts"
            return
    assert routes == decoding


def test_every_scheme_that_llama_takes_is_in_the_table() -> None:
    taken = set()
    for record in list_schemes():
        try:
            patch_model(tiny_model("llama"), record.name)
        except PosEncError:
            continue
        taken.add(record.name)
    assert set(table()) | RECIPES >= taken
    assert not set(table()) & RECIPES
