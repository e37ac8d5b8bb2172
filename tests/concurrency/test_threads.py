"""Threads, and hooks of a forward pass, that patch and run: results are those of one alone, or it is refused."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import describe, is_patched, patch_model, unpatch_model
from hf_posenc.checks import Case, longest_case
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import AlreadyPatched, ModelInUse, NotPatched

T = TypeVar("T")


def text(length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 90, (1, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits_of(model: nn.Module, length: int) -> Tensor:
    return model(text(length)).logits


def at_once(work: Callable[[int], list[T]], count: int) -> list[list[T]]:
    """What each of so many threads finds; they start together."""
    gate = threading.Barrier(count)

    def run(number: int) -> list[T]:
        gate.wait(timeout=60)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("seed", range(2))
def test_one_model_for_all(seed: int) -> None:
    """One thread patches it, the others get an error; one unpatches it, and its logits are as before."""
    model, schemes = tiny_model("llama"), ("yarn", "alibi", "t5", "rerope")
    before = logits_of(model, 24)

    def patched(number: int) -> list[str]:
        try:
            patch_model(model, schemes[number - seed], factor=2)
        except AlreadyPatched:
            return []
        return [schemes[number - seed]]

    won = [name for names in at_once(patched, len(schemes)) for name in names]
    assert won == [describe(model).scheme]

    def unpatched(number: int) -> list[int]:
        try:
            unpatch_model(model)
        except NotPatched:
            return []
        return [number]

    assert len([number for numbers in at_once(unpatched, 4) for number in numbers]) == 1
    assert torch.equal(logits_of(model, 24), before)


@pytest.mark.parametrize("scheme", ["yarn", "t5", "dynamic_ntk", "self_extend"])
def test_one_model(scheme: str) -> None:
    """Eight threads read texts of different lengths on one patched model: tables grow under each other's hands."""
    case = Case("llama", scheme, factor=4)
    with case.patched() as model:

        def work(number: int) -> list[Tensor]:
            return [logits_of(model, 9 + 11 * ((number + step) % 8)) for step in range(4)]

        together = at_once(work, 8)
        alone = [work(number) for number in range(8)]
    for one, other in zip(together, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Generation:
    """A text that grows token by token, with a cache of its own."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self.model, self.ids, self.cache = model, text(5 + seed, seed), None

    @torch.no_grad()
    def steps(self, count: int) -> Iterator[Tensor]:
        new = self.ids
        for _ in range(count):
            out = self.model(new, past_key_values=self.cache, use_cache=True)
            self.cache, new = out.past_key_values, out.logits[:, -1:].argmax(-1)
            yield out.logits[:, -1]


@pytest.mark.parametrize("scheme", ["yarn", "dynamic_ntk", "self_extend", "sinks"])
def test_two_texts_alternately(scheme: str) -> None:
    """Two generations on one model, a token of the one, a token of the other."""
    with longest_case("llama", scheme).patched() as model:
        alone = [list(Generation(model, seed).steps(60)) for seed in (0, 3)]
        pairs = list(zip(Generation(model, 0).steps(60), Generation(model, 3).steps(60), strict=True))
    for one, other in zip(zip(*pairs, strict=True), alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_control_shared_state_is_detected() -> None:
    """Control: two generations that share one cache disturb each other."""
    with longest_case("llama", "yarn").patched() as model:
        alone = list(Generation(model, 0).steps(6))
        one, other = Generation(model, 0), Generation(model, 3)
        found = []
        with torch.no_grad():
            for _ in range(3):
                found += list(one.steps(1))
                other.cache = one.cache
                list(other.steps(1))
        assert not all(torch.equal(a, b) for a, b in zip(found, alone, strict=False))


TEXT = torch.arange(3, 27)[None]


@torch.no_grad()
def call_with_hook(model: Any, module: str, change: Any) -> int:
    """Call a model, one of whose modules makes a change once; how often it was made."""
    made = []
    model.get_submodule(module).register_forward_hook(lambda *_: made or made.append(change()))
    model(TEXT)
    return len(made)


@pytest.mark.parametrize("module", ["", "model", "model.layers.0.self_attn"])
@pytest.mark.parametrize("patched", [False, True])
def test_from_a_hook_of_the_model(module: str, patched: bool) -> None:
    model = tiny_model("llama")
    if patched:
        patch_model(model, "yarn", factor=2)

    def change() -> None:
        with pytest.raises(ModelInUse, match="hook"):
            unpatch_model(model) if patched else patch_model(model, "yarn", factor=2)

    assert call_with_hook(model, module, change) == 1
    assert is_patched(model) == patched


def test_from_a_hook_of_another_model() -> None:
    model, other = tiny_model("llama"), tiny_model("gpt2")
    assert call_with_hook(model, "model", lambda: patch_model(other, "alibi")) == 1
    assert is_patched(other)
