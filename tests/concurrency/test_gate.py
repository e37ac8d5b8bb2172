"""A forward pass during a patch computes with the model before or after it, never with a mixture."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import is_patched, patch_model, unpatch_model
from hf_posenc.checks import Case, longest_case
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import ModelInUse, NoEffect, SchemeNotDefined
from hf_posenc.patching import call_stacks, forward_gate, patch

SCHEMES = ("yarn", "alibi", "sinusoidal", "sinks", "t5", "learned", "shaw")
LONG = 60.0  # seconds; only a test that fails waits for so long
SLOW = "slow"
TEXT = torch.randint(3, 90, (1, 24), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits_of(model: nn.Module) -> Tensor:
    return model(TEXT).logits


def patch_case(model: nn.Module, case: Case) -> None:
    """Patch with parameters that are learned drawn alike every time."""
    torch.manual_seed(1)
    patch_model(model, case.scheme, **case.options)


class PatchedModel:
    """A model, and what it says with a scheme and without."""

    def __init__(self, name: str, scheme: str) -> None:
        self.model, self.case = tiny_model(name), longest_case(name, scheme)
        self.before = logits_of(self.model)
        self.patch()
        self.patched = logits_of(self.model)
        self.unpatch()
        assert torch.equal(logits_of(self.model), self.before)

    def patch(self) -> None:
        patch_case(self.model, self.case)

    def unpatch(self) -> None:
        unpatch_model(self.model)

    def state(self, logits: Tensor) -> str:
        """Which of the two models said this."""
        return (
            "before"
            if torch.equal(logits, self.before)
            else "patched"
            if torch.equal(logits, self.patched)
            else "mixed"
        )

    @property
    def second_layer(self) -> nn.Module:
        lists = [module for module in self.model.modules() if isinstance(module, nn.ModuleList)]
        return lists[0][1]


class Slow:
    """A pre-hook that stops threads called `SLOW` until it is released."""

    def __init__(self, module: nn.Module) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self.handle = module.register_forward_pre_hook(self)

    def __call__(self, module: nn.Module, args: tuple) -> None:
        if threading.current_thread().name.startswith(SLOW):
            self.entered.set()
            assert self.released.wait(LONG)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@contextmanager
def stopped(example: PatchedModel) -> Iterator[tuple[Slow, Future[Tensor]]]:
    """A forward pass in another thread that has computed one layer of two."""
    slow = Slow(example.second_layer)
    with ThreadPoolExecutor(1, thread_name_prefix=SLOW) as threads:
        try:
            running = threads.submit(logits_of, example.model)
            assert slow.entered.wait(LONG)
            yield slow, running
        finally:
            slow.released.set()
            slow.handle.remove()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def waits(model: nn.Module, count: int) -> bool:
    """Whether so many threads wait for the model's gate."""
    held = vars(model).get(forward_gate.ENTRANCE)
    return held is not None and len(held.gate.waiting) == count


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("change", ["patch", "unpatch"])
@pytest.mark.parametrize("scheme", ["yarn", "t5"])
def test_a_running_pass_ends_first(pool: ThreadPoolExecutor, name: str, change: str, scheme: str) -> None:
    """It finishes on what it began with; passes that begin meanwhile wait, and run on what comes after."""
    example = PatchedModel(name, scheme)
    if change == "unpatch":
        example.patch()
    with stopped(example) as (slow, running):
        changing = pool.submit(example.patch if change == "patch" else example.unpatch)
        until(lambda: forward_gate.ENTRANCE in vars(example.model))
        later = [pool.submit(logits_of, example.model) for _ in range(2)]
        until(lambda: waits(example.model, 2))
        assert not changing.done()
        assert is_patched(example.model) == (change == "unpatch")
        slow.released.set()
        changing.result(LONG)
        before, after = ("before", "patched") if change == "patch" else ("patched", "before")
        assert example.state(running.result(LONG)) == before
        assert [example.state(one.result(LONG)) for one in later] == [after, after]
    assert not any(forward_gate.ENTRANCE in vars(module) for module in example.model.modules())


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_without_the_gate(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Control: the same pass, and nobody waits for it."""
    monkeypatch.setattr(patch, "exclusive_access", lambda *_: nullcontext())
    example = PatchedModel(name, "yarn")
    with stopped(example) as (slow, running):
        example.patch()
        slow.released.set()
        try:
            found = example.state(running.result(LONG))
        except (TypeError, AttributeError, KeyError):
            found = "mixed"
        assert found == "mixed"


def test_a_pass_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patching is refused, and the model is as it was for those who waited."""
    monkeypatch.setattr(forward_gate, "TIMEOUT", 0.05)
    example = PatchedModel("llama", "yarn")
    with stopped(example) as (slow, running):
        with pytest.raises(ModelInUse, match="another thread"):
            example.patch()
        assert not is_patched(example.model)
        assert example.state(logits_of(example.model)) == "before"
        slow.released.set()
        assert example.state(running.result(LONG)) == "before"
    example.patch()
    assert example.state(logits_of(example.model)) == "patched"


@pytest.mark.parametrize("module_name", ["", "model", "model.layers.0.self_attn"])
@pytest.mark.parametrize("patched", [False, True])
def test_from_a_hook(module_name: str, patched: bool) -> None:
    """A forward pass that patches its own model would wait for itself."""
    example, met = PatchedModel("llama", "yarn"), []
    if patched:
        example.patch()

    def hook(*_: object) -> None:
        if not met:
            met.append(True)
            with pytest.raises(ModelInUse, match="hook"):
                example.unpatch() if patched else example.patch()

    example.model.get_submodule(module_name).register_forward_hook(hook)
    assert example.state(logits_of(example.model)) == ("patched" if patched else "before")
    assert met


def test_from_a_hook_of_another_model(pool: ThreadPoolExecutor) -> None:
    """A pass that patches another model, while its own is being patched: neither waits for the other's lock."""
    example, other = PatchedModel("llama", "yarn"), PatchedModel("gpt2", "alibi")
    with stopped(example) as (slow, running):
        changing = pool.submit(example.patch)
        until(lambda: forward_gate.ENTRANCE in vars(example.model))
        slow.handle.remove()
        done = []
        example.second_layer.register_forward_hook(lambda *_: done.append(other.patch()) if not done else None)
        slow.released.set()
        changing.result(LONG)
        assert example.state(running.result(LONG)) == "before"
    assert done
    assert other.state(logits_of(other.model)) == "patched"
    assert example.state(logits_of(example.model)) == "patched"


def test_a_patch_that_fails(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waited for it computes with the model as it was."""
    example = PatchedModel("llama", "t5")
    reached, go_on = threading.Event(), threading.Event()

    def verdict(probe: patch.EffectProbe, made: object) -> None:
        reached.set()
        assert go_on.wait(LONG)
        raise NoEffect("Nothing moved. Try again.")

    monkeypatch.setattr(patch.EffectProbe, "verdict", verdict)
    changing = pool.submit(example.patch)
    assert reached.wait(LONG)
    later = pool.submit(logits_of, example.model)
    until(lambda: waits(example.model, 1))
    go_on.set()
    with pytest.raises(NoEffect):
        changing.result(LONG)
    assert example.state(later.result(LONG)) == "before"


def test_a_base_and_a_part_called_alone(pool: ThreadPoolExecutor) -> None:
    """Calls that go past the head wait likewise."""
    example = PatchedModel("llama", "alibi")
    hidden = torch.randn(1, 4, 64, generator=torch.Generator().manual_seed(0))
    norm = example.model.model.layers[0].input_layernorm
    with stopped(example) as (slow, _):
        changing = pool.submit(example.patch)
        until(lambda: forward_gate.ENTRANCE in vars(example.model))
        later = [pool.submit(example.model.model, TEXT), pool.submit(norm, hidden)]
        until(lambda: waits(example.model, 2))
        slow.released.set()
        changing.result(LONG)
        states = later[0].result(LONG).last_hidden_state
        assert torch.equal(example.model.lm_head(states), example.patched)
        assert torch.equal(later[1].result(LONG), norm(hidden))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_forward_passes_while_patching(name: str, scheme: str) -> None:
    """Three threads compute without a pause, a fourth patches and unpatches."""
    try:
        example = PatchedModel(name, scheme)
    except SchemeNotDefined:
        pytest.skip("not defined")
    found: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            found.append(example.state(logits_of(example.model)))

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read) for _ in range(3)]
        try:
            for _ in range(4):
                example.patch()
                logits_of(example.model)
                example.unpatch()
                logits_of(example.model)
        finally:
            stop.set()
        for reader in readers:
            reader.result(LONG)
    assert set(found) <= {"before", "patched"}


def test_a_pass_blocked_in_the_model_counts_as_running() -> None:
    """It entered just before everybody was found to have left, and must end before the model is changed."""
    model = tiny_model("llama")
    gate = forward_gate.ForwardGate(model.modules())
    entered, proceed = threading.Event(), threading.Event()

    def pause(*_: object) -> None:
        entered.set()
        proceed.wait(LONG)

    model.model.embed_tokens.register_forward_hook(pause)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(logits_of, model)
        assert entered.wait(LONG)
        assert gate.close()
        try:
            gate.quiet = True
            proceed.set()
            time.sleep(0.2)  # it arrives at the next module
            assert gate.inside()
            assert not running.done()
            gate.quiet = False
            assert running.result(LONG).isfinite().all()
        finally:
            gate.quiet = False
            gate.open()


@pytest.mark.full
def test_a_compiled_model() -> None:
    """Dynamo neither compiles half of a model nor finds its guards broken by the gate."""
    example = PatchedModel("llama", "t5")
    compiled = torch.compile(example.model, backend="eager")
    stop = threading.Event()

    @torch.no_grad()
    def read() -> list[Tensor]:
        found = []
        while not stop.is_set():
            found.append(compiled(TEXT, use_cache=False).logits)
        return found

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        try:
            for _ in range(2):
                example.patch()
                time.sleep(0.1)
                example.unpatch()
                time.sleep(0.1)
        finally:
            stop.set()
        for logits in readers[0].result(300) + readers[1].result(300):
            assert min(float((logits - one).abs().max()) for one in (example.before, example.patched)) < 1e-5


def test_stacks_of_threads_that_run() -> None:
    """Every stack reaches from where the thread is to where it began, generators included."""

    def numbers(count: int) -> Iterator[int]:
        yield from range(count)

    def deep(left: int) -> int:
        return sum(numbers(3)) + max([*numbers(2)]) if left == 0 else deep(left - 1)

    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            deep(8)

    threads, interval = [threading.Thread(target=run) for _ in range(2)], sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(500):
            found = call_stacks.functions_of_threads()
            for thread in threads:
                assert call_stacks.function_of(run) in found[thread.ident or 0]
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert not {thread.ident for thread in threads} & call_stacks.functions_of_threads().keys()


@pytest.mark.parametrize("file", ["/home/Jürgen/模型/😀.py", "/" + "long/" * 120 + "model.py", "/home/x" + "ü" * 600])
def test_a_function_is_found_whatever_its_file_is_called(file: str) -> None:
    names: dict = {"started": threading.Event(), "stop": threading.Event()}
    exec(compile("def forward():\n    started.set()\n    stop.wait()\n", file, "exec"), names)
    thread = threading.Thread(target=names["forward"])
    thread.start()
    try:
        assert names["started"].wait(LONG)
        assert call_stacks.function_of(names["forward"]) in call_stacks.functions_of_threads()[thread.ident or 0]
    finally:
        names["stop"].set()
        thread.join()
    assert call_stacks.function_of(time.sleep) is None, "control: not written in Python"
