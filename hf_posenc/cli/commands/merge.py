"""``hf-posenc merge``: write a PEFT adapter and its base as one checkpoint."""

from __future__ import annotations

from typing import Annotated

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson, Base, Dtype, NewFolder, PushToHub, dtype_of, model_named, of_model
from hf_posenc.cli.next_commands import after_merge, show_next

Adapter = Annotated[
    str,
    of_model("--model", "-m", metavar="MODEL", help="Folder of a PEFT adapter or a fine-tuning run, or hub name."),
]


def merge(
    model: Adapter,
    out: NewFolder,
    base: Base = None,
    dtype: Dtype = None,
    push_to_hub: PushToHub = None,
    as_json: AsJson = False,
) -> None:
    """Merge a PEFT adapter into the weights of its base.

    The checkpoint carries the scheme the adapter was trained under. It is kept only if its logits are those of the
    adapter but for rounding, and if what is read back from the disk is the merged model bit for bit.
    """
    from hf_posenc.checkpoints.hub import create_repository, upload
    from hf_posenc.checkpoints.merge import merge as run

    named = model_named(model, base)
    if push_to_hub is not None:
        push_to_hub = create_repository(push_to_hub)
    with output.other_bars_off():
        merged = run(named.adapter or named.model, out, base=base, dtype=dtype_of(named, dtype))
    if push_to_hub is not None:
        upload(out, push_to_hub)
        output.note(f"Uploaded to {push_to_hub}")
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
    show_next(after_merge(out, expressible=merged.expressible))
