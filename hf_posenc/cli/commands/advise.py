"""``hf-posenc advise``: recommend schemes and options for a target context length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Context, Exit

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Base,
    Dtype,
    Model,
    dtype_of,
    model_named,
    of_measurement,
    of_model,
    of_output,
)
from hf_posenc.cli.errors import PARTLY
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.cli.output import check_output_folder
from hf_posenc.cli.settings import READING, Reading, Text, set_option, settings_of


def advise(
    context: Context,
    model: Model,
    target: Annotated[
        str,
        of_model(
            "--target-length",
            metavar="TOKENS",
            help="Context length in tokens, such as 131072 or 128k; k = 1024, m = 1024².",
        ),
    ],
    measure: Annotated[
        bool,
        of_measurement(
            "--measure", help="Load the model, measure each zero-shot recommendation, and order them by their loss."
        ),
    ] = False,
    text: Text = None,
    samples: Annotated[int | None, of_measurement(min=1, help="Windows of text for --measure; default: 16.")] = None,
    settings: Annotated[
        list[str] | None, set_option("How --text is read: text_field=body, document_separator=TEXT")
    ] = None,
    out: Annotated[
        Path | None, of_output(help="Keep the comparison of --measure in this folder; it resumes there.")
    ] = None,
    base: Base = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Recommend schemes for a target context length.

    Reads the configuration only, never weights, but for --measure. The exit code is 3 where there is no adapter for the
    model.
    """
    from hf_posenc.checkpoints.checkpoint import Checkpoint
    from hf_posenc.insight.advise import advise as recommend
    from hf_posenc.insight.advise import measured_advice

    if out is not None:
        check_output_folder("--out", out)
    named = model_named(model, base)
    checkpoint = Checkpoint.open(named)
    advice = recommend(checkpoint, target, name=model, dtype=dtype_of(named, dtype))
    (own_text,) = Reading(**settings_of(context, READING)).sources(text)
    if measure:
        given: dict[str, Any] = {} if samples is None else {"samples": samples}
        if base is not None:
            given["peft"] = named.adapter
        with output.progress() as progress:
            advice = measured_advice(
                advice, named.model if base is not None else named.adapter or named.model, out=out, progress=progress,
                text=own_text, dtype=dtype_of(named, dtype), **given,
            )  # fmt: skip
    elif unread := [name for name, value in (("--text", text), ("--samples", samples), ("--out", out)) if value]:
        raise BadArgument(f"{unread[0]} has an effect with --measure only. Add --measure, or leave it out.")
    if as_json:
        output.show_json(advice.to_dict())
    else:
        output.show_text(str(advice))
    if not advice.supported:
        raise Exit(PARTLY)
