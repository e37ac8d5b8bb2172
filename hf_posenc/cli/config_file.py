"""``--config FILE``: the options of a command from a YAML file, which the command line overrides.

A file holds names of options as on the command line, without the dashes in front, and their values: lists where an
option may be repeated, and names and values of the scheme's options for ``option``.

    model: starter:llama
    scheme: rerope
    factor: 8
    option: {window: 128}
    learning-rate: 1.0e-3
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml  # which transformers requires
from typer import Context, Option

from hf_posenc.cli.global_options import BadArgument
from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.plugins import import_file, imported_files
from hf_posenc.errors import shown

RUN_CONFIG = "config.yaml"
NOT_STORED = ("config", "out", "resume", "as_json", "debug")
"""Options that say where a run is written and how it is shown, not what is run."""
MAY_BE_PATHS = ("model", "base", "text", "held_out", "dev_text")
"""Options that name files and folders, among other things."""
IMPORTED = "import"
"""Name of `hf_posenc.cli.global_options.IMPORT` in a file: Python files that the scheme needs."""
SETTINGS = "set"
"""The option that takes the names in a file which are no options of the command."""


def read_config(context: Context, path: Path | None) -> Path | None:
    """Make the values of a YAML file the defaults of the running command."""
    if path is None:
        return None
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadArgument(f"--config {path} cannot be read: {error.strerror}. Correct the path.") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        first = " ".join(str(error).split())
        raise BadArgument(f"--config {path} is not valid YAML: {first}. Correct the file.") from error
    if not isinstance(given, dict):
        content = "is empty" if given is None else f"holds {shown(given)}"
        raise BadArgument(f"--config {path} {content}. Write names of options and their values, a line each.")
    for file in as_list(given.pop(IMPORTED, [])):
        import_file(str(file))
    own = [parameter for parameter in context.command.params if parameter.name not in NOT_STORED[:1]]
    known = {name: parameter for parameter in own for name in names_of(parameter)}
    defaults: dict[str, Any] = {}
    settings: list[str] = []
    for name, value in given.items():
        parameter = known.get(str(name).replace("_", "-"))  # Python's spelling names the same option
        if parameter is None:
            settings += as_default(known[SETTINGS], SETTINGS, {name: value}, path)
        else:
            defaults[str(parameter.name)] = as_default(parameter, name, value, path)
    name = str(known[SETTINGS].name)
    defaults[name] = [*defaults.get(name, ()), *settings]
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def names_of(parameter: Any) -> list[str]:
    """The names that a file may use for an option: the long ones without dashes."""
    return [name.removeprefix("--") for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")]


def as_default(parameter: Any, name: str, value: Any, path: Path) -> Any:
    """A value as click wants the default of an option to be."""
    if isinstance(value, Mapping) and parameter.multiple:
        return [f"{key}={single if isinstance(single, str) else json.dumps(single)}" for key, single in value.items()]
    if parameter.multiple:
        return [str(single) for single in as_list(value)]
    if isinstance(value, (list, Mapping)):
        raise BadArgument(f"--config {path} sets {name} to {shown(value)}. Write a single value.")
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise BadArgument(f"--config {path} sets {name} to {shown(value)}. Write true or false.")
        return value
    return None if value is None else str(value)


def as_list(value: Any) -> list[Any]:
    """A list as it is; a single value as a list of one."""
    return value if isinstance(value, list) else [value]


ConfigFile = Annotated[
    Path | None,
    Option("--config", is_eager=True, callback=read_config, help="YAML file of options; the command line overrides."),
]


def write_config(context: Context, folder: Path) -> None:
    """Write what a command was asked for into ``folder``, as a file that ``--config`` takes."""
    chosen = dict(options_of(context))
    text = f"# hf-posenc {context.info_name} --config {RUN_CONFIG} --out FOLDER\n"
    write_bytes(folder / RUN_CONFIG, (text + yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True)).encode())


def options_of(context: Context) -> Iterator[tuple[str, Any]]:
    """The options of the running command under their names in a file, with the defaults of this version."""
    if files := imported_files():
        yield IMPORTED, [os.path.abspath(file) for file in files]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in NOT_STORED or value in (None, [], ()):
            continue
        several, names_path = isinstance(value, (list, tuple)), parameter.name in MAY_BE_PATHS
        written = [plain(single, may_be_path=names_path) for single in (value if several else [value])]
        yield names_of(parameter)[0], written if several else written[0]


def plain(value: Any, *, may_be_path: bool = False) -> Any:
    """A value as one writes it in YAML: paths become absolute, so that the file may be moved."""
    if isinstance(value, Path) or (may_be_path and os.path.exists(value)):
        return os.path.abspath(value)
    return int(value) if isinstance(value, str) and value.isdecimal() and str(int(value)) == value else value
