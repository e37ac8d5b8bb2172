"""``hf-posenc demo``: measure and plot eight schemes on a small trained Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson
from hf_posenc.cli.output_paths import check_output_folder
from hf_posenc.cli.task_arguments import FactorPerLength
from hf_posenc.cli.text_arguments import FIELD, DocumentSeparator, Text, TextField, check_reading, text_source


def demo(
    out: Annotated[Path, Option(help="Folder of the results; created if missing.")] = Path("results/demo"),
    quick: Annotated[bool, Option("--quick", help="Fewer schemes, lengths and samples; about a minute.")] = False,
    text: Text = None,
    text_field: TextField = FIELD,
    document_separator: DocumentSeparator = None,
    factor_per_length: FactorPerLength = False,
    as_json: AsJson = False,
) -> None:
    """Compare schemes on a small trained Llama.

    Eight schemes at up to eight times its trained length, each patched once with the factor of the longest, then a
    brief fine-tuning of one. About six minutes; needs no network. With --factor-per-length the fine-tuning, which has
    one factor, is left out.
    """
    from hf_posenc.eval.demo import run_demo
    from hf_posenc.eval.report.report import protocol
    from hf_posenc.eval.report.terminal_table import results_table

    check_output_folder("--out", out)
    check_reading(text, text_field, document_separator)
    own_text = text_source(text, text_field, document_separator)
    with output.progress() as progress:
        results = run_demo(out, quick=quick, progress=progress, text=own_text, factor_per_length=factor_per_length)
    if as_json:
        output.show_json(results.to_dict())
    else:
        output.show(results_table(results.rows, results.about["trained_length"], protocol(results.about)))
        output.show_text(f"Written to {out}: report.md, results.json, overview.png, loss.png, passkey.png")
