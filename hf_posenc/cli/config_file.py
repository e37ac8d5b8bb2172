"""``--config FILE``: the options of a command from a YAML file, which the command line overrides.

Names are those of the command line, without the dashes in front. An option that may be repeated takes a list, and
``option`` takes the names and values of the scheme's options.

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
"""Options that do not change what is computed, only where it is written and how it is shown."""
MAY_BE_PATHS = ("model", "text", "held_out")
"""Options whose values may be files or folders."""
IMPORTED = "import"
"""Name in a file of `hf_posenc.cli.global_options.IMPORT`: Python files that the scheme needs."""
SETTINGS = "set"
"""The option that collects all names in a file that are not options of the command."""


def options_in(path: Path) -> dict[Any, Any]:
    """The options in a YAML file, with their names there."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadArgument(f"--config {path} cannot be read: {error.strerror}. Correct the path.") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        first = " ".join(str(error).split())
        raise BadArgument(f"--config {path} is not valid YAML: {first}. Correct the file.") from error
    if not isinstance(content, dict):
        problem = "is empty" if content is None else f"holds {shown(content)}"
        raise BadArgument(f"--config {path} {problem}. Write one option and its value per line.")
    return content


def read_config(context: Context, path: Path | None) -> Path | None:
    """Use the values of a YAML file as defaults of the running command."""
    if path is None:
        return None
    content = options_in(path)
    for file in as_list(content.pop(IMPORTED, [])):
        import_file(str(file))
    if content.pop("load-in-4bit", False):  # which earlier versions wrote into the folder of every run
        raise BadArgument(f"--config {path} sets load-in-4bit, which is gone. Write dtype: 4bit instead.")
    parameters = [parameter for parameter in context.command.params if parameter.name != "config"]
    known = {name: parameter for parameter in parameters for name in names_of(parameter)}
    defaults: dict[str, Any] = {}
    settings: list[str] = []
    for name, value in content.items():
        parameter = known.get(str(name).replace("_", "-"))  # Python's spelling names the same option
        if parameter is None:
            settings += as_default(known[SETTINGS], SETTINGS, {name: value}, path)
        else:
            defaults[str(parameter.name)] = as_default(parameter, name, value, path)
    of_settings = str(known[SETTINGS].name)
    defaults[of_settings] = [*defaults.get(of_settings, ()), *settings]
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def names_of(parameter: Any) -> list[str]:
    """Return the names of an option in a file: its long names without dashes."""
    return [name.removeprefix("--") for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")]


def as_default(parameter: Any, name: str, value: Any, path: Path) -> Any:
    """Convert a value of a file to the form that click expects of the default of an option."""
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
    """Return a list unchanged, and a single value as a list."""
    return value if isinstance(value, list) else [value]


ConfigFile = Annotated[
    Path | None,
    Option("--config", is_eager=True, callback=read_config, help="YAML file of options; the command line overrides."),
]


def write_config(context: Context, folder: Path) -> None:
    """Write the options of the running command to ``folder``, as a file for ``--config``."""
    options = dict(options_of(context))
    text = f"# hf-posenc {context.info_name} --config {RUN_CONFIG} --out FOLDER\n"
    write_bytes(folder / RUN_CONFIG, (text + yaml.safe_dump(options, sort_keys=False, allow_unicode=True)).encode())


def options_of(context: Context) -> Iterator[tuple[str, Any]]:
    """Yield the options of the running command, defaults included, with their names in a file."""
    if files := imported_files():
        yield IMPORTED, [os.path.abspath(file) for file in files]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in NOT_STORED or value in (None, [], ()):
            continue
        if parameter.name in MAY_BE_PATHS:
            value = list(map(absolute, value)) if parameter.multiple else absolute(value)
        yield names_of(parameter)[0], value


def absolute(name: str) -> str:
    """Return the absolute path of a file or folder, so that the file may be moved; another name unchanged."""
    return os.path.abspath(name) if os.path.exists(name) else name
