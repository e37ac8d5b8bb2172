"""The Typer application: all commands with their help examples, and the options common to all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from hf_posenc.cli import output
from hf_posenc.cli.commands.advise import advise
from hf_posenc.cli.commands.bench import bench
from hf_posenc.cli.commands.check import check
from hf_posenc.cli.commands.compare import compare, demo
from hf_posenc.cli.commands.evaluate import evaluate
from hf_posenc.cli.commands.export import export, merge
from hf_posenc.cli.commands.finetune import finetune
from hf_posenc.cli.commands.info import env, info, list_command
from hf_posenc.cli.commands.probe import probe
from hf_posenc.cli.commands.show import show
from hf_posenc.cli.global_options import DEBUG, IMPORT, BadArgument
from hf_posenc.errors import UnknownOption

COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_command, "info": info, "show": show, "advise": advise, "check": check, "eval": evaluate,
    "compare": compare, "probe": probe, "bench": bench, "finetune": finetune, "export": export, "merge": merge,
    "demo": demo, "env": env,
}  # fmt: skip
"""Commands by name, in the order of ``hf-posenc --help``."""
EXAMPLES = """
list
list --model bert
info yarn
info yarn+logn --bibtex
show rope
show pi ntk yarn llama3 --picture frequencies --factor 8 --out frequencies.svg
show sinusoidal --picture clock --position 10
advise --model starter:llama --target-length 2k
check --model starter:llama --scheme yarn --factor 4
check --model starter:llama --scheme rerope --factor 4 --option window=128
eval --model starter:llama --lengths 256,512
eval --model starter:llama --scheme yarn --factor 4 --out results/yarn.json
eval -m starter:llama -l 1024 -t posenc_niah_single,posenc_qa --set limit=4
compare --model starter:llama --schemes unpatched,yarn,self_extend --lengths 256,512,1024
compare -m starter:llama -s yarn:beta_fast=16 -s self_extend:group=8,window=128 --out results/two
compare -m starter:llama -s unpatched,yarn,rerope,window --rank --out results/ranked
probe --model starter:llama --out results/probe
probe --model starter:llama --scheme yarn --factor 4 --out results/yarn
bench --schemes yarn,alibi,self_extend --lengths 512,2048
bench --shape 2,512,8,2 -s alibi,rerope -l 4096 --cases decode,train --dtype bfloat16
finetune --model starter:llama --scheme yarn --factor 8 --out runs/yarn8
finetune -m M -s yarn -f 4 --text book.txt --steps 200 --set rank=8 --set bf16=true --out runs/m
finetune -m M -s yarn -f 4 --text book.txt --find-learning-rate
finetune --model starter:llama --scheme yarn --factor 8 --out runs/yarn8 --resume
export --model starter:llama --scheme yarn --factor 8 --out plain-yarn
merge --model runs/yarn8 --out merged-yarn8
merge --model owner/adapter --base ./my-model --out merged --dtype bfloat16
demo
demo --quick --out results/quick
env
"""
"""Examples for the help of the commands; the first word of a line names the command."""

LAST = ("Output", "Options")
"""Headings that come last in the help; options without a heading come under the second."""
VALUES = {"int": "N", "integer": "N", "float": "NUMBER", "path": "PATH"}
"""Placeholders in the help by Typer's name of the type; other types are ``TEXT``."""
TYPE = re.compile(r"(?<= )<?(?:list\[)?(str|text|int|integer|float|path)(?: range)?\]?>?$", re.IGNORECASE)
RANGE = re.compile(r"(\S+)<=x<=(\S+?)(?=[\];])")
AT_LEAST = re.compile(r"x>=(?=\d)")


class Command(TyperCommand):
    """Command whose ``--help`` shows options under headings, the ``rich_help_panel`` of each.

    Typer shows headings only with rich, and importing rich would double the response time.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                argument = parameter.param_type_name == "argument"
                heading = getattr(parameter, "rich_help_panel", None) or ("Arguments" if argument else LAST[-1])
                sections.setdefault(heading, []).append(in_plain_words(*record))
        for heading in sorted(sections, key=lambda heading: LAST.index(heading) if heading in LAST else -1):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line; an unknown option may be the name of a setting."""
        try:
            if args and not ctx.resilient_parsing:
                check_repeated(self.make_parser(ctx).parse_args(args=list(args))[2])
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:  # some releases of Typer put pydantic's words before their own
            error.message = error.message.removeprefix("Value error, ")
            raise
        except Exception as error:  # click's NoSuchOption, which newer releases of Typer carry a copy of
            if hasattr(error, "possibilities") and any("--set" in parameter.opts for parameter in self.params):
                setting = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
                error.possibilities = [*(error.possibilities or ()), f"--set {setting}=VALUE"]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; the error about an unknown option names the file that may hold it."""
        try:
            return super().invoke(ctx)
        except UnknownOption as error:
            if (file := ctx.params.get("config")) is not None:
                error.args = (f"{error} Options also come from --config {file}.",)
            raise


def check_repeated(order: Iterable[Any]) -> None:
    """Refuse an option that is given twice but takes one value."""
    for parameter, times in Counter(order).items():
        repeatable = not isinstance(parameter, TyperOption) or parameter.multiple or parameter.is_flag
        if times > 1 and not repeatable:
            raise BadArgument(f"{parameter.opts[0]} is given {times} times and takes one value. Pass it once.")


def in_plain_words(names: str, text: str) -> tuple[str, str]:
    """Replace types and ranges in a line of the help by plain words."""
    names = TYPE.sub(lambda match: VALUES.get(match[1].lower(), "TEXT"), names)
    return names, AT_LEAST.sub("at least ", RANGE.sub(r"\1 to \2", text))


# Plain help: importing rich would double the response time, and its output holds escape codes.
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def examples(*lines: str) -> str:
    """Format examples for the end of a help text; ``\\b`` keeps click from joining the lines."""
    return "\b\n" + "\n".join(("Examples:", *(f"  hf-posenc {line}".rstrip() for line in lines)))


for name, function in COMMANDS.items():
    lines = [line for line in EXAMPLES.splitlines() if line.split()[:1] == [name]]
    app.command(name, cls=Command, epilog=examples(*lines))(function)


def version(requested: bool) -> None:
    """Show the version and exit."""
    if requested:
        output.show_text(f"hf-posenc {metadata.version('hf-posenc')}")
        raise typer.Exit


@app.callback(
    epilog=examples(
        "demo --quick",
        "info yarn",
        "check --model starter:llama --scheme rerope --factor 4",
        "advise --model starter:llama --target-length 2k",
    )
)
def common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option(DEBUG, help="Show errors as tracebacks; allowed at any place.")] = False,
    imports: Annotated[
        list[str] | None,
        typer.Option(
            IMPORT, metavar="FILE", help="Python file that registers a scheme or an adapter; allowed at any place."
        ),
    ] = None,
) -> None:
    """Replace the positional encoding of a Hugging Face transformer: patch, check, evaluate, fine-tune.

    Exit codes: 0 success, 1 failure, 2 wrong option, scheme or file, 3 partly refused, 4 a check does not hold.
    """
