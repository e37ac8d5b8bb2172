"""The forward of an attention class without its rotation: the same code, where the functions that rotate do nothing.

With cosines of one and sines of zero they return what they are given, and take a dozen small operations a layer for
it: a tenth of the time of a decoded token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

_MADE: dict[tuple[FunctionType, tuple[tuple[str, int], ...]], FunctionType] = {}


def unrotated(forward: Any, rotating: tuple[tuple[str, int], ...]) -> Any:
    """A forward whose functions named in ``rotating`` return their first arguments, as many as stand beside the name.

    Args:
        forward: a method of an attention class.
        rotating: as `rotating_functions` found them; 0 stands for one that returns a tensor and no tuple.
    """
    if not rotating or not isinstance(forward, FunctionType):
        return forward
    made = _MADE.get((forward, rotating))
    if made is None:
        nothing = {name: _first if count == 0 else _first_of(count) for name, count in rotating}
        made = _MADE[forward, rotating] = with_globals(forward, nothing)
    return made


def rotating_functions(forward: Any, call: Callable[[Any], Any], rotation: set[int]) -> tuple[tuple[str, int], ...]:
    """Functions of its module that a forward calls with a rotation by nothing, and that return what they are given.

    Args:
        forward: a method of an attention class.
        call: calls such a forward, in the place of this one.
        rotation: identities of the cosines and sines, or complex numbers, that rotate by nothing.
    """
    if not isinstance(forward, FunctionType) or inspect.unwrap(forward) is not forward:
        call(forward)
        return ()
    noted: dict[str, set[int | None]] = {}

    def noting(name: str, function: FunctionType) -> Callable[..., Any]:
        def noted_function(*args: Any, **kwargs: Any) -> Any:
            returned = function(*args, **kwargs)
            if any(id(value) in rotation for value in (*args, *kwargs.values())):
                noted.setdefault(name, set()).add(_unchanged(args, returned))
            return returned

        return noted_function

    call(with_globals(forward, {name: noting(name, function) for name, function in _functions_of(forward)}))
    return tuple((name, *counts) for name, counts in noted.items() if len(counts) == 1 and None not in counts)  # type: ignore[misc]


def with_globals(forward: FunctionType, changed: Mapping[str, Any]) -> FunctionType:
    """A function of the same code, for which some names of its module mean something else."""
    names = {**forward.__globals__, **changed}
    made = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    made.__kwdefaults__ = forward.__kwdefaults__
    return made


def _functions_of(forward: FunctionType) -> Iterator[tuple[str, FunctionType]]:
    for name in forward.__code__.co_names:
        function = forward.__globals__.get(name)
        if isinstance(function, FunctionType):
            yield name, function


def _unchanged(args: tuple[Any, ...], returned: Any) -> int | None:
    """How many of the first arguments a function returned unchanged, 0 for one that is no tuple; None otherwise."""
    alone = isinstance(returned, Tensor)
    found = (returned,) if alone else tuple(returned) if isinstance(returned, (tuple, list)) else ()
    same = found and len(found) <= len(args) and all(map(_same, found, args))
    return None if not same else 0 if alone else len(found)


def _same(one: Any, two: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(two, Tensor) and one.dtype == two.dtype and torch.equal(one, two)


def _first(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x


def _first_of(count: int) -> Callable[..., tuple[Tensor, ...]]:
    def first(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return args[:count]

    return first
