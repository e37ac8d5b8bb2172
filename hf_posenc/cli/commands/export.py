"""``hf-posenc export``: write a patched model for programs without this package."""

from __future__ import annotations

import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

from hf_posenc.cli import arguments as cli
from hf_posenc.cli import output
from hf_posenc.errors import EngineDiffers

To = Annotated[
    Literal["transformers", "auto", "bundle", "gguf", "onnx"],
    cli.of_output(
        "--to",
        metavar="FORMAT",
        help="transformers (a plain checkpoint), auto (as another class of transformers if needed), bundle (any "
        "scheme, with the code it needs), gguf (one file for llama.cpp), onnx (a graph).",
    ),
]
Results = Annotated[
    Path | None,
    cli.of_output(
        "--results",
        exists=True,
        metavar="FILE",
        help="Results of eval or compare, for the model card; default: those in the folder of --model.",
    ),
]


def export(
    model: cli.Model,
    out: cli.NewFolder,
    scheme: cli.OwnScheme = None,
    factor: cli.Factor = None,
    target_length: cli.TargetLength = None,
    option: cli.SchemeOptions = None,
    base: cli.Base = None,
    dtype: cli.Dtype = None,
    to: To = "transformers",
    results: Results = None,
    as_json: cli.AsJson = False,
) -> None:
    """Export to a checkpoint that does not need this package.

    The plain transformers checkpoint is written if transformers has a RoPE type for the scheme. Without --scheme, the
    scheme of the checkpoint is exported. A PEFT adapter is merged into the weights. With --to auto, a Llama may become
    a Mistral (a window) or a SmolLM 3 (layers without a rotation), and a GPT-2 a GPT-NeoX (a rotation), a BLOOM (ALiBi)
    or a GPT-2 with a longer table. With --to bundle, the checkpoint of any scheme contains code that transformers runs
    with trust_remote_code=True. With --to gguf, the folder gets model.gguf for llama.cpp. With --to onnx, it gets
    model.onnx, and onnxruntime must agree with the model first.
    """
    from hf_posenc.checkpoints.export import export as run
    from hf_posenc.checkpoints.merge import empty_folder

    named, options = cli.model_named(model, base), cli.scheme_options(scheme, option)
    loading = {**cli.loading_of(named, dtype), "scheme": scheme, "factor": factor, "target_length": target_length}
    empty_folder(out)
    with output.other_bars_off(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with redirect_stdout(sys.stderr):  # torch's exporter prints what it does
            exported = run(loading.pop("name_or_path"), out, to=to, results=results, **loading, **options)
    remarks = [warning for warning in caught if warning.category.__module__.startswith("hf_posenc")]
    if not exported.tokenizer:
        output.note("No tokenizer was found with the model.")
    if Path(named.model, "modules.json").is_file():  # of sentence-transformers
        output.note(f"{out} has the transformer alone: the pooling of {named.model} is not written.")
    if as_json:
        readers, messages = list(map(vars, exported.readers)), [str(remark.message) for remark in remarks]
        output.show_json({"folder": str(out), **exported.written, "readers": readers, "warnings": messages})
        return
    output.show_text(f"{out}: {', '.join(f'{name} {value}' for name, value in exported.written.items() if value)}")
    if exported.readers:
        output.show_text("Against transformers, by the formula of each engine:")
    for reading in exported.readers:
        output.show_text(f"  {reading}")
    for remark in remarks:
        if not (exported.readers and remark.category is EngineDiffers):
            output.show_text(f"Warning: {remark.message}")


def merge(
    model: cli.Model,
    out: cli.NewFolder,
    base: cli.Base = None,
    dtype: cli.Dtype = None,
    results: Results = None,
    as_json: cli.AsJson = False,
) -> None:
    """Merge a PEFT adapter into the weights of its base.

    The checkpoint carries the scheme the adapter was trained under. It is kept only if its logits equal those of the
    adapter up to rounding, and if its weights are read back from the disk bit for bit.
    """
    from hf_posenc.checkpoints.merge import merge as run
    from hf_posenc.patching.model_card import write_found_results

    named = cli.model_named(model, base)
    with output.other_bars_off():
        merged = run(named.adapter or named.model, out, base=base, dtype=cli.dtype_of(named, dtype))
        write_found_results(out, results, named.adapter or named.model, merged.scheme or "unpatched")
    if as_json:
        output.show_json({
            "folder": str(out), "scheme": merged.scheme, "deviation": merged.deviation, "tokenizer": merged.tokenizer,
            "expressible": merged.expressible,
        })  # fmt: skip
        return
    output.show_text(
        f"Written to {out}: the model {f'with scheme {merged.scheme}' if merged.scheme else 'without a scheme'}. "
        f"Its logits differ from the adapter's by {merged.deviation:.1e} of their standard deviation."
    )
    if not merged.tokenizer:
        output.note("No tokenizer was found with the adapter or its base.")
