"""Options that several commands share, as one dataclass: each field is an option of every command that takes it.

Typer reads the options of a command from the parameters of its function, so two commands with the same forty options
would write each of them twice. Here a command has one parameter that holds them all:

    @expands(FinetuneOptions)
    def finetune(context: Context, options: FinetuneOptions, resume: Resume = False) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

Command = Callable[..., None]


def expands(group: type[Any]) -> Callable[[Command], Command]:
    """Replace the parameter of a command that is annotated with a dataclass by one parameter for each of its fields."""

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        (holder,) = (name for name, hint in hints.items() if hint is group)
        shared = parameters_of(group)

        @wraps(command)
        def expanded(**given: Any) -> None:
            values = {parameter.name: given.pop(parameter.name) for parameter in shared}
            command(**given, **{holder: group(**values)})

        own = [
            parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
            for name, parameter in signature(command).parameters.items()
        ]
        place = [parameter.name for parameter in own].index(holder)
        parameters = [*own[:place], *shared, *own[place + 1 :]]
        expanded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
        return expanded

    return decorate


def parameters_of(group: type[Any]) -> list[Parameter]:
    """The fields of a dataclass as parameters."""
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=default_of(field), annotation=hints[field.name])
        for field in fields(group)
    ]


def default_of(field: Field[Any]) -> Any:
    """The default of a field, as a signature has it."""
    return Parameter.empty if field.default is MISSING else field.default
