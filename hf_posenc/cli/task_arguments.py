"""Options of tasks that several commands have, and the parsers of their values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from hf_posenc.cli.arguments import is_given
from hf_posenc.cli.bad_argument import BadArgument

Samples = Annotated[int, Option(min=1, help="Windows of text at each length.")]
Scored = Annotated[int, Option(min=1, help="Tokens scored at the end of each window.")]
Keys = Annotated[int, Option(min=1, help="Passkeys, needles or questions, each at every depth.")]
Depths = Annotated[str, Option(help="Relative depths of the key in the filler text, 0 to 1.")]
DEPTHS = "0,0.25,0.5,0.75,1"
FactorPerLength = Annotated[
    bool,
    Option(
        "--factor-per-length",
        help="Patch anew for every length with factor = length / trained length; default: once, for the longest.",
    ),
]
Limit = Annotated[int | None, Option(min=1, help="Documents per length, for a quick look.")]
Data = Annotated[list[str] | None, Option(help="File or folder of records for tasks that read one; may be repeated.")]
Metadata = Annotated[
    str | None, Option(metavar="JSON", help='Options of tasks, as {"docs": "books/", "scoring": "generate"}.')
]
IncludePath = Annotated[Path | None, Option(help="Folder of further task files; needs --trust-tasks.")]


def check_settings(context: Context, tasks: Sequence[str]) -> None:
    """Refuse settings of tasks, on the command line or in ``--config``, that none of the tasks reads.

    Raises:
        UnknownOption: there is one.
    """
    from hf_posenc.eval.task_settings import TASKS_READING, check_settings_read

    check_settings_read([name for name in TASKS_READING if is_given(context, name, in_file=True)], tasks)


def task_options(context: Context, metadata: str | None, data: Sequence[str] | None) -> dict[str, Any]:
    """Options of tasks, from ``--metadata`` and ``--data``.

    Raises:
        BadArgument: the former is no JSON object, or sets what an option of the command line sets.
    """
    options = json_mapping("--metadata", metadata)
    for parameter in context.command.params:
        for name in {option.removeprefix("--") for option in parameter.opts} & options.keys():
            if is_given(context, str(parameter.name)):
                raise BadArgument(f"--{name} is given, and --metadata sets {name} as well. Leave out one of them.")
    return options | ({"data": list(data)} if data else {})


def json_mapping(option: str, given: str | None) -> dict[str, Any]:
    """Parse a JSON object; empty where none is given.

    Raises:
        BadArgument: it is not valid JSON, or no object.
    """
    try:
        found = json.loads(given) if given is not None else {}
    except ValueError as error:
        raise BadArgument(f'{option} is not valid JSON: {error}. Pass for example \'{{"docs": "books"}}\'.') from error
    if not isinstance(found, dict):
        raise BadArgument(f'{option} must be a JSON object, got {given}. Pass for example \'{{"docs": "books"}}\'.')
    return found
