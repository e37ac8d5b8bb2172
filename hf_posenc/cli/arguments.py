"""Options shared by several commands, and the parsers of their values."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import CallbackParam, Context, Option

from hf_posenc.cli.global_options import BadArgument, program
from hf_posenc.core.lengths import tokens
from hf_posenc.schemes.entry import json_or_text

if TYPE_CHECKING:
    from hf_posenc.checkpoints.model_name import ModelName

MODEL, MEASUREMENT, OUTPUT = "Model and scheme", "Measurement", "Output"
"""Headings of options in the help."""
MOST_THREADS = 1024
"""OpenMP aborts the process if the system cannot create as many threads."""

of_model = partial(Option, rich_help_panel=MODEL)
of_measurement = partial(Option, rich_help_panel=MEASUREMENT)
of_text = partial(Option, rich_help_panel="Text")
of_output = partial(Option, rich_help_panel=OUTPUT)

AsJson = Annotated[bool, of_output("--json", help="Write JSON to stdout.")]
NewFolder = Annotated[Path, of_output("--out", metavar="FOLDER", help="Folder of the new checkpoint; new or empty.")]
MODEL_HELP = "Folder of a model, a PEFT adapter or a fine-tuning run; hub name; starter:llama."
Model = Annotated[str, of_model("--model", "-m", metavar="MODEL", help=MODEL_HELP)]
Base = Annotated[
    str | None,
    of_model("--base", metavar="MODEL", help="Base of a PEFT adapter given as --model; default: the one it names."),
]
OwnScheme = Annotated[
    str | None,
    of_model("--scheme", "-s", metavar="SCHEME", help="Scheme to patch in first; default: that of the checkpoint."),
]
SchemeOptions = Annotated[
    list[str] | None, of_model("--option", "-o", metavar="NAME=VALUE", help="Option of the scheme; may be repeated.")
]
Factor = Annotated[
    float | None, of_model("--factor", "-f", help="Extension factor: target length / trained length, at least 1.")
]


def in_tokens(parameter: CallbackParam, text: str | None) -> int | None:
    """Parse a length in tokens: ``4096`` or ``4k``."""
    return None if text is None else tokens(text, parameter.opts[0])


def length_option(*names: str, help: str, heading: str | None = None) -> Any:
    """Build an option that takes a length in tokens."""
    return Option(*names, metavar="TOKENS", parser=str, callback=in_tokens, help=help, rich_help_panel=heading)


TargetLength = Annotated[
    int | None,
    length_option(help="Context length to reach, such as 8192 or 8k; instead of --factor.", heading=MODEL),
]
TrainedLength = Annotated[
    int | None,
    length_option(help="Pre-training context length, where the configuration is wrong.", heading=MODEL),
]
TrustTasks = Annotated[
    bool,
    of_measurement("--trust-tasks", help="Load task files from outside the package, which can run arbitrary code."),
]


def floating_dtype(name: str | None) -> str | None:
    """Check that ``--dtype`` names a floating-point dtype of torch."""
    if name not in (None, "auto"):
        import torch

        dtype = getattr(torch, name, None)
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise BadArgument(f"--dtype takes a floating data type of torch, got {name!r}. Write for example bfloat16.")
    return name


Dtype = Annotated[
    str | None,
    of_model(
        callback=floating_dtype,
        metavar="TYPE",
        help="Data type of the weights, such as float32; default: as stored (starters: float32).",
    ),
]
Device = Annotated[str | None, of_model(metavar="DEVICE", help="cpu, cuda, cuda:1; default: CUDA if available.")]

REMOVED = "The checkpoint carries scheme {}, which was removed first."
NOT_REPEATED = ("as_json", "config")  # the first changes the output alone; the values of the file are written instead


def model_named(name: str, base: str | None = None) -> ModelName:
    """Resolve ``--model`` and ``--base``; raises as `ModelName.of`."""
    from hf_posenc.checkpoints.model_name import ModelName

    return ModelName.of(name) if base is None else ModelName.of(base, adapter=name)


def loading_of(named: ModelName, dtype: str | None) -> dict[str, Any]:
    """Return the arguments of `hf_posenc.from_pretrained` for a model and ``--dtype``.

    A local folder becomes an absolute path: an adapter trained on the model stores this name, and must find the model
    from any working directory.
    """
    path = os.path.abspath(named.model) if os.path.isdir(named.model) else named.model
    return {"name_or_path": path, "peft_adapter": named.adapter, "dtype": dtype_of(named, dtype), **named.hub}


def dtype_of(named: ModelName, dtype: str | None) -> str:
    """Resolve ``--dtype``: the given one, else float32 for starters, else the stored one (``auto``)."""
    return dtype or named.dtype or "auto"


def is_given(context: Context, name: str) -> bool:
    """Whether a parameter was set on the command line, and not by a default or a file."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_unread(context: Context, names: Collection[str], why: str) -> None:
    """Refuse options, also of ``--config``, that have no effect beside others; ``why`` ends the message."""
    in_file = context.default_map or {}
    for parameter in context.command.params:
        if parameter.name in names and (is_given(context, str(parameter.name)) or in_file.get(parameter.name)):
            raise BadArgument(f"{parameter.opts[0]} {why}")


def scheme_options(scheme: str | None, words: Sequence[str] | None) -> dict[str, Any]:
    """Parse ``["window=128", "ramp=dim"]``, and check the options against the scheme before a model is loaded.

    A value is JSON if it parses as JSON, otherwise text. Every scheme takes ``trained_length``.
    """
    options: dict[str, Any] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise BadArgument(f"--option takes NAME=VALUE, got {word!r}. Write for example --option window=128.")
        options[name] = tokens(value, name) if name == "trained_length" else json_or_text(value)
    if scheme is not None:
        from hf_posenc.schemes.spec import plan

        plan(scheme, {name: value for name, value in options.items() if name != "trained_length"})
    elif options:
        raise BadArgument(f"--option {next(iter(options))} needs a scheme. Pass --scheme as well.")
    return options


def words_of(values: Sequence[str] | None) -> list[str]:
    """Split repeated, comma-separated values: ``["256,512", "1024"]`` is three words."""
    return [word.strip() for value in values or () for word in value.split(",") if word.strip()]


def whole_numbers(option: str, values: Sequence[str] | None, least: int = 1) -> list[int]:
    """Parse comma-separated integers of at least ``least``."""
    words = words_of(values)
    for word in words:
        if not (word.isascii() and word.isdigit() and int(word) >= least):
            example = "256,512" if least else "0,1"
            raise BadArgument(
                f"{option} takes whole numbers of at least {least}, got {word!r}. Write for example {example}."
            )
    return [int(word) for word in words]


def command_line(context: Context) -> str:
    """Format the running command, quoted for a shell and without defaults."""
    names = {parameter.name for parameter in context.command.params} - {*NOT_REPEATED}
    return shlex.join([*program(), str(context.info_name), *words_that_set(context, names)])


def words_that_set(context: Context, names: Collection[str | None]) -> list[str]:
    """Return the words of a command line that set the parameters of these names, without defaults."""
    words: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        is_default = value in (None, [], ()) or str(value) == str(parameter.default)
        if is_default or parameter.name not in names:
            continue
        for single in value if isinstance(value, (list, tuple)) else [value]:
            name = [parameter.opts[0]] if parameter.param_type_name == "option" else []
            words += name + ([] if single is True else [str(single)])
    return words
