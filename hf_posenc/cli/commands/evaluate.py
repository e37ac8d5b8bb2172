"""``hf-posenc eval``: measure one model at several sequence lengths."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Context

from hf_posenc.cli import arguments as cli
from hf_posenc.cli import output
from hf_posenc.cli.config_file import ConfigFile
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.cli.output import check_output_file
from hf_posenc.cli.settings import Lengths, Samples, Settings, Tasks, Text, measured_settings

COLUMNS = ("scheme", "task", "length", "depth", "metric", "value", "stderr", "n", "clusters")


def evaluate(
    context: Context,
    model: cli.Model,
    scheme: cli.OwnScheme = None,
    factor: cli.Factor = None,
    target_length: cli.TargetLength = None,
    option: cli.SchemeOptions = None,
    lengths: Lengths = None,
    tasks: Tasks = None,
    samples: Samples = None,
    text: Text = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, cli.of_output(help="Also write the rows and lm-eval's results to this JSON file.")
    ] = None,
    trust_tasks: cli.TrustTasks = False,
    dtype: cli.Dtype = None,
    device: cli.Device = None,
    config: ConfigFile = None,
    as_json: cli.AsJson = False,
) -> None:
    """Measure a model at several sequence lengths, through lm-eval.

    By default it measures the cross-entropy loss of the same last tokens at every length, and passkey retrieval. Any
    task of lm-eval can be named, except RULER's: the posenc_ tasks replace them.
    """
    from hf_posenc.eval import evaluate as measure
    from hf_posenc.eval.settings import EvaluateSettings

    patch: dict[str, Any] = {"factor": factor, "target_length": target_length, **cli.scheme_options(scheme, option)}
    run_settings, other = measured_settings(context, EvaluateSettings)
    loading: dict[str, Any] = {"device": device, "batch_size": other.get("batch_size", 1)}
    options = {name: value for name, value in (patch | loading).items() if value is not None}
    named = cli.model_named(model, other.get("base"))
    if out is not None:
        check_replaces_results(out)
    elif run_settings.log_samples:
        raise BadArgument("log_samples keeps requests and responses in a file, and none is named. Pass --out FILE.")
    with output.progress() as progress:
        evaluation = measure(
            named.model, peft=named.adapter, scheme=scheme, settings=run_settings, dtype=cli.dtype_of(named, dtype),
            on_request=progress, **options,
        )  # fmt: skip
    if out is not None:
        evaluation.save(out)
    if not evaluation.first:  # of several processes, one reports
        return
    if as_json:
        output.show_json(list(map(asdict, evaluation.rows)))
        return
    output.show_table(COLUMNS, [[getattr(row, column) for column in COLUMNS] for row in evaluation.rows])
    for remark in evaluation.remarks:
        output.show_text(remark)


def check_replaces_results(path: Path) -> None:
    """Check that results replace earlier results only: a mistyped name must not overwrite a text or a model."""
    check_output_file(path)
    if not path.exists() or not path.stat().st_size:
        return
    with suppress(ValueError):
        read = json.loads(path.read_bytes())
        if isinstance(read, dict) and {"rows", "lm_eval"} <= read.keys():
            return
    raise BadArgument(f"--out {str(path)!r} holds something other than results of eval. Choose another name.")
