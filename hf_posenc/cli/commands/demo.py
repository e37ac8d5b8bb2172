"""``hf-posenc demo``: compare eight schemes on a small trained Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson, command_line
from hf_posenc.cli.commands.compare import finish
from hf_posenc.cli.next_commands import resume_hint
from hf_posenc.cli.output import check_output_folder

FULL: dict[str, Any] = {
    "schemes": "unpatched,pi,ntk,yarn,dynamic_ntk,self_extend,rerope,window", "lengths": (256, 512, 1024, 2048),
    "samples": 24, "keys": 5,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "schemes": "unpatched,pi,yarn,dynamic_ntk,rerope", "lengths": (256, 512, 1024), "samples": 6, "keys": 2,
    "depths": (0.0, 0.5, 1.0),
}  # fmt: skip


def demo(
    context: Context,
    out: Annotated[Path, Option(help="Folder of the results; the same command resumes there.")] = Path("results/demo"),
    quick: Annotated[bool, Option("--quick", help="Fewer schemes, lengths and samples; about a minute.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare schemes on a small trained Llama.

    Eight schemes at up to eight times its trained length, each patched once with the factor of the longest. About six
    minutes; needs no network. Your own models: hf-posenc compare.
    """
    from hf_posenc.eval import compare

    check_output_folder("--out", out)
    with resume_hint(context), output.progress() as progress:
        comparison = compare(
            "starter:llama", out=out, dtype="float32", against="unpatched", command=command_line(context),
            progress=progress, **(QUICK if quick else FULL),
        )  # fmt: skip
    finish(comparison, out, as_json)
