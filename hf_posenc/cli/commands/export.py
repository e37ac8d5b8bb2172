"""``hf-posenc export``: a scheme as a plain checkpoint, for whoever has not got this package."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

from typer import Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Dtype,
    Factor,
    Model,
    SchemeOptions,
    TargetLength,
    dtype_of,
    model_path,
    scheme_options,
    tokenizer_of,
)
from hf_posenc.cli.errors import BadArgument

Out = Annotated[Path, Option("--out", metavar="FOLDER", help="Where the checkpoint goes.")]
Scheme = Annotated[str | None, Option("--scheme", "-s", help="Put on first; by default the one the model carries.")]


def export(
    model: Model,
    out: Out,
    scheme: Scheme = None,
    factor: Factor = None,
    target_length: TargetLength = None,
    option: SchemeOptions = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint that plain transformers reads, where it has a RoPE type for the scheme.

    Without --scheme, the one the model carries. A PEFT adapter is merged into the weights.
    """
    from hf_posenc.checkpoints.export import export_native, merge_adapter
    from hf_posenc.checkpoints.load import from_pretrained

    path, options = model_path(model), scheme_options(scheme, option)
    if out.exists() and any(out.iterdir()):
        raise BadArgument(f"The folder {str(out)!r} is not empty. Choose another one.")
    with output.other_bars_off(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tokenizer = tokenizer_of(path)
        patched = from_pretrained(
            path, scheme=scheme, factor=factor, target_length=target_length, dtype=dtype_of(model, dtype), **options
        )
        parameters = export_native(merge_adapter(patched), out)
        tokenizer.save_pretrained(out)
    remarks = [str(one.message) for one in told if one.category.__module__.startswith("hf_posenc")]
    if as_json:
        output.show_json({"folder": str(out), "rope_parameters": parameters, "warnings": remarks})
        return
    output.show_text(f"{out}: rope_parameters {parameters}")
    for remark in remarks:
        output.show_text(f"Warning: {remark}")
