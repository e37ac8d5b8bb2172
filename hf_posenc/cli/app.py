"""The Typer application: all commands with their help examples, and the options common to all."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from hf_posenc.cli import output
from hf_posenc.cli.commands.advise import advise
from hf_posenc.cli.commands.bench import bench
from hf_posenc.cli.commands.check import check
from hf_posenc.cli.commands.compare import compare
from hf_posenc.cli.commands.demo import demo
from hf_posenc.cli.commands.env import env
from hf_posenc.cli.commands.evaluate import evaluate
from hf_posenc.cli.commands.export import export
from hf_posenc.cli.commands.find_learning_rate import find_learning_rate
from hf_posenc.cli.commands.finetune import finetune
from hf_posenc.cli.commands.info import info
from hf_posenc.cli.commands.leaderboard import leaderboard
from hf_posenc.cli.commands.list import list_command
from hf_posenc.cli.commands.merge import merge
from hf_posenc.cli.commands.probe import probe
from hf_posenc.cli.commands.search import search
from hf_posenc.cli.commands.show import show
from hf_posenc.cli.environment import DEBUG
from hf_posenc.cli.imports import IMPORT
from hf_posenc.cli.one_value import OneValueCommand

# Plain help: importing rich would double the response time, and its output holds escape codes.
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def examples(*lines: str) -> str:
    """Format examples for the end of a help text; ``\\b`` keeps click from joining the lines."""
    return "\b\n" + "\n".join(("Examples:", *(f"  {line}" for line in lines)))


def version(requested: bool) -> None:
    """Show the version and exit."""
    if requested:
        output.show_text(f"hf-posenc {metadata.version('hf-posenc')}")
        raise typer.Exit


@app.callback(
    epilog=examples(
        "hf-posenc demo --quick",
        "hf-posenc info yarn",
        "hf-posenc check --model starter:llama --scheme rerope --factor 4",
        "hf-posenc advise --model starter:llama --target 2k",
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
    """Replace the positional encoding of a Hugging Face transformer: patch, check, evaluate, fine-tune."""


app.command("list", epilog=examples("hf-posenc list", "hf-posenc list --model bert", "hf-posenc list --json"))(
    list_command
)
app.command(
    "info", epilog=examples("hf-posenc info yarn", "hf-posenc info yarn --latex", "hf-posenc info rerope --json")
)(info)
app.command(
    "show",
    epilog=examples(
        "hf-posenc show rope",
        "hf-posenc show pi ntk yarn llama3 --picture frequencies --factor 8",
        "hf-posenc show self_extend dca rerope string --picture distance --out distances.svg",
        "hf-posenc show rope rope_nd --picture grid",
        "hf-posenc show sinusoidal --picture clock --animate position",
        "hf-posenc show alibi --list",
    ),
)(show)
app.command(
    "advise",
    epilog=examples(
        "hf-posenc advise --model starter:llama --target 2k",
        "hf-posenc advise --model starter:bert --target 1024 --json",
    ),
)(advise)
app.command(
    "search",
    epilog=examples(
        "hf-posenc search --model starter:llama --target 1024 --budget 5m",
        "hf-posenc search -m starter:llama -t 2k --text book.txt --eval-text other.txt --out results/search",
        "hf-posenc search -m starter:llama -t 2k --budget 30m --all-keys --json",
    ),
)(search)
app.command(
    "check",
    epilog=examples(
        "hf-posenc check --model starter:llama --scheme yarn --factor 4",
        "hf-posenc check --model starter:bert --scheme alibi --json",
        "hf-posenc check --model starter:llama --scheme rerope --factor 4 --option window=128",
    ),
)(check)
app.command(
    "eval",
    epilog=examples(
        "hf-posenc eval --model starter:llama --lengths 256,512",
        "hf-posenc eval --model starter:llama --scheme yarn --factor 4 --out results/yarn.json",
        "hf-posenc eval -m starter:llama -l 1024 -t posenc_niah_single -t niah_single_1 --limit 4",
    ),
)(evaluate)
app.command(
    "compare",
    epilog=examples(
        "hf-posenc compare --model starter:llama --schemes unpatched,yarn,self_extend --lengths 256,512,1024",
        "hf-posenc compare -m starter:llama -s yarn:beta_fast=16 -s self_extend:group=8,window=128 --out results/two",
        "hf-posenc compare -m starter:bert -s unpatched,alibi,rope -l 128,256 -t posenc_mlm --samples 4",
    ),
)(compare)
app.command(
    "leaderboard",
    epilog=examples(
        "hf-posenc leaderboard --quick",
        "hf-posenc leaderboard --models starter:llama --schemes yarn,rerope,self_extend --lengths 256,1024",
        "hf-posenc leaderboard -m ./my-model --text book.txt --out results/mine",
    ),
)(leaderboard)
app.command(
    "probe",
    epilog=examples(
        "hf-posenc probe --model starter:llama --out results/probe",
        "hf-posenc probe --model starter:llama --scheme yarn --factor 4 --out results/yarn",
        "hf-posenc probe --model starter:bert --length 256 --json",
    ),
)(probe)
app.command(
    "bench",
    epilog=examples(
        "hf-posenc bench --schemes yarn,alibi,self_extend --lengths 512,2048",
        "hf-posenc bench -m starter:bert -s alibi,t5 -l 1024 --baselines unpatched --out results/bench",
        "hf-posenc bench --shape 2,512,8,2 -s alibi,rerope -l 4096 --decode --train --dtype bfloat16",
    ),
)(bench)
app.command(
    "finetune",
    epilog=examples(
        "hf-posenc finetune --model starter:llama --scheme yarn --factor 8 --out runs/yarn8",
        "hf-posenc finetune -m M -s yarn -f 4 --text book.txt --steps 200 --learning-rate 2e-4 --bf16 --out runs/m",
        "hf-posenc finetune --model starter:llama --scheme yarn --factor 8 --out runs/yarn8 --resume",
    ),
)(finetune)
app.command(
    "find-learning-rate",
    epilog=examples(
        "hf-posenc find-learning-rate --model starter:llama --scheme yarn --factor 8 --out runs/rate",
        "hf-posenc find-learning-rate -m M -s yarn -f 4 --text book.txt --method full --out runs/rate --json",
    ),
)(find_learning_rate)
app.command(
    "export",
    epilog=examples(
        "hf-posenc export --model starter:llama --scheme yarn --factor 8 --out plain-yarn",
        "hf-posenc export --model starter:llama --scheme ntk --factor 4 --out plain-ntk --json",
    ),
)(export)
app.command(
    "merge",
    epilog=examples(
        "hf-posenc merge --model runs/yarn8 --out merged-yarn8",
        "hf-posenc merge --model owner/adapter --base ./my-model --out merged --dtype bfloat16",
    ),
)(merge)
app.command("demo", epilog=examples("hf-posenc demo", "hf-posenc demo --quick --out results/quick"))(demo)
app.command("env", epilog=examples("hf-posenc env", "hf-posenc env --json"))(env)

for registered in app.registered_commands:
    registered.cls = OneValueCommand
