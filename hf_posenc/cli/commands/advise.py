"""``hf-posenc advise``: recommend schemes and options for a target context length."""

from __future__ import annotations

from typing import Annotated

from hf_posenc.cli import arguments as cli
from hf_posenc.cli import output


def advise(
    model: cli.Model,
    target: Annotated[
        str,
        cli.of_model(
            "--target-length",
            metavar="TOKENS",
            help="Context length in tokens, such as 131072 or 128k; k = 1024, m = 1024².",
        ),
    ],
    gpu: Annotated[
        str | None,
        cli.of_model(
            metavar="GIB", help="Memory of a card, such as 80, or 8x80 for eight: also shows what fits, and commands."
        ),
    ] = None,
    base: cli.Base = None,
    dtype: cli.Dtype = None,
    as_json: cli.AsJson = False,
) -> None:
    """Recommend schemes for a target context length.

    Reads the configuration only, never weights.
    """
    from hf_posenc.checkpoints.checkpoint import Checkpoint
    from hf_posenc.insight.advise import advise as recommend

    named = cli.model_named(model, base)
    checkpoint = Checkpoint.open(named)
    advice = recommend(checkpoint, target, name=model, dtype=cli.dtype_of(named, dtype), gpu=gpu)
    if as_json:
        output.show_json(advice.to_dict())
    else:
        output.show_text(str(advice))
