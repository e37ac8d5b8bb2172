"""Keep forward passes of other threads out of a model while it is patched or unpatched (a readers-writer gate).

A patch changes classes, hooks, parameters and configuration one after the other, and its probe scales the scores of a
layer. A forward pass at the same time would compute one layer unpatched and the next one patched. Therefore:

1. Close the gate: calls that enter the model from outside wait. Calls that a running pass makes go through.
2. Wait until no other thread is inside; passes that run finish on the model as they began.
3. Change the model, and open the gate: calls that waited start on the changed model.

The gate stands where `nn.Module.__call__` looks for a compiled call, before hooks and ``forward`` are looked up, so
that a call that waited reads all of the new state. While nothing is patched there is no gate and no cost.

Threads inside are found by the functions on their stacks: a thread that computes with another model of the same class
is waited for as well.

Not covered: free-threaded builds of Python, and processes of more than 100 threads, whose stacks cannot be read; direct
calls of the base model's ``forward`` that begin while the gate is closed, which pass no gate; replicas of
`DataParallel` and recomputation of checkpointed layers, where a forward pass and its backward pass may lie on two sides
of a patch.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from hf_posenc.errors import ModelInUse
from hf_posenc.patching.call_stacks import function_of, functions_of_threads, own_stack

TIMEOUT = 60.0
"""Seconds to wait for the forward passes that run; a pass over a long text on CPU may take that long."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1e-4, 1e-2
"""Seconds between two looks at the stacks."""
ENTRANCE = "_compiled_call_impl"  # of a module: what `nn.Module.__call__` calls instead of hooks and forward
DYNAMO = "torch._dynamo.convert_frame"  # has the lock that a thread holds while it compiles
CALL_FUNCTIONS = (
    "_wrapped_call_impl",
    "forward",
)  # functions of a module on the stack of a thread that computes with it


class ForwardGate:
    """Hold back calls of ``modules`` from outside them.

    Args:
        modules: all parts of a model, and what it is a part of.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.modules = list(modules)
        self.ids = {id(module) for module in self.modules}
        kinds = {type(module) for module in self.modules if not type(module).__module__.startswith("torch.")}
        self.functions = {function_of(kind.forward) for kind in kinds}
        self.owner = threading.get_ident()
        self.opened = threading.Event()
        self.waiting: set[int] = set()  # threads
        self.quiet = False  # nobody is inside, so that whoever makes a call now has begun after the gate was closed
        self.compiler = getattr(sys.modules.get(DYNAMO), "compile_lock", None) or threading.RLock()

    def close(self) -> bool:
        """Make calls wait from now on; False where Dynamo, which must not see the change, compiles for too long."""
        if not self.compiler.acquire(timeout=TIMEOUT):
            return False
        try:
            for module in self.modules:
                own = module.__dict__.get(ENTRANCE)  # of `module.compile()`
                module.__dict__[ENTRANCE] = _Entrance(self, module, own)
        finally:
            self.compiler.release()
        return True

    def open(self) -> None:
        """Let calls through again."""
        for module in self.modules:
            entrance = module.__dict__.get(ENTRANCE)
            if isinstance(entrance, _Entrance) and entrance.gate is self:
                if entrance.own is None:
                    del module.__dict__[ENTRANCE]
                else:
                    module.__dict__[ENTRANCE] = entrance.own
        self.opened.set()
        if self.quiet:
            self.compiler.release()

    def pass_through(self) -> None:
        """Wait, unless the gate is open, or this thread closed it or is inside a running pass."""
        thread = threading.get_ident()
        if self.opened.is_set() or thread == self.owner:
            return
        if self.depth(own_stack()) > 1:  # it stays inside while it waits here, so that `is_left` lets it go on
            while self.quiet and not self.opened.wait(SHORTEST_PAUSE):
                pass
            return
        self.waiting.add(thread)
        try:
            self.opened.wait()
        finally:
            self.waiting.discard(thread)

    def depth(self, stack: Iterable[FrameType]) -> int:
        """How many calls of the model the stack of this thread holds."""
        return sum(
            frame.f_code.co_name in CALL_FUNCTIONS and id(frame.f_locals.get("self")) in self.ids for frame in stack
        )

    def inside(self) -> list[int]:
        """Other threads that compute with the model now, or with another of its classes."""
        found = functions_of_threads().items()
        return [thread for thread, functions in found if functions & self.functions and thread not in self.known]

    @property
    def known(self) -> set[int]:
        """Threads that do not compute with the model, although a call of it is on their stacks."""
        return {self.owner, *self.waiting}

    def is_left(self) -> bool:
        """Wait until no other thread is inside, and keep Dynamo from compiling; False where one stays too long."""
        end, pause = time.monotonic() + TIMEOUT, SHORTEST_PAUSE
        while (left := end - time.monotonic()) > 0:
            if not self.inside() and self.compiler.acquire(timeout=left):
                self.quiet = True
                if not self.inside():  # a thread that compiled is on no stack; another may come by ``model.forward``
                    return True
                self.quiet = False
                self.compiler.release()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return False


class _Entrance:
    """The compiled-call attribute of one module while the gate is closed.

    Args:
        gate: it belongs to.
        module: its calls arrive here.
        own: the compiled call that it replaces, if the module has one.
    """

    def __init__(self, gate: ForwardGate, module: nn.Module, own: Any) -> None:
        self.gate, self.own = gate, own
        self.call = module._call_impl if own is None else own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            self.gate.pass_through()
        return self.call(*args, **kwargs)


@contextmanager
def exclusive_access(model: nn.Module, base: nn.Module) -> Iterator[None]:
    """Run the block while no other thread computes with ``base``, which is a part of ``model``, or is it.

    Raises:
        ModelInUse: one does not finish in time; nothing was changed.
    """
    entrance = base.__dict__.get(ENTRANCE)
    if isinstance(entrance, _Entrance) and entrance.gate.owner == threading.get_ident():
        yield  # this thread keeps the others out already, of a model that ``base`` is a part of
        return
    gate = ForwardGate(model_parts(model, base))
    try:
        if not (gate.close() and gate.is_left()):
            raise ModelInUse(
                f"A forward pass of this {type(model).__name__} in another thread has not ended after {TIMEOUT:g} s. "
                "The model is as it was; wait for that thread, and call again."
            )
        yield
    finally:
        gate.open()


def check_not_in_forward(model: nn.Module, base: nn.Module) -> None:
    """Refuse to change a model from within its own forward pass, such as from a hook, which would wait for itself.

    Raises:
        ModelInUse: this thread is inside.
    """
    if ForwardGate(model_parts(model, base)).depth(own_stack()):
        raise ModelInUse(
            f"This thread is inside a forward pass of the {type(model).__name__} that it wants to patch or unpatch. "
            "Do that after the call has returned, and not from a hook of the model."
        )


def model_parts(model: nn.Module, base: nn.Module) -> list[nn.Module]:
    """All modules of ``base``, and those of ``model`` that hold it."""
    path = next(name for name, module in model.named_modules() if module is base)
    above = [module for name, module in model.named_modules() if f"{path}.".startswith(f"{name}." if name else "")]
    return [*(module for module in above if module is not base), *base.modules()]
