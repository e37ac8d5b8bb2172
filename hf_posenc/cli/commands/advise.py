"""``hf-posenc advise``: which scheme, with which numbers, at what cost."""

from __future__ import annotations

from typing import Annotated

from typer import Exit, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Dtype,
    Model,
    dtype_of,
    model_path,
)
from hf_posenc.cli.errors import PARTLY


def advise(
    model: Model,
    target: Annotated[
        str, Option("--target", "-t", metavar="TOKENS", help="Such as 131072 or 128k; k is 1024, m its square.")
    ],
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Advise on a scheme for a length.

    Reads the configuration only, never weights. The exit code is 3 where no adapter knows the model.
    """
    from hf_posenc.insight.advise import advise as ask

    advice = ask(model_path(model), target, name=model, dtype=dtype_of(model, dtype))
    if as_json:
        output.show_json(advice.to_dict())
    else:
        output.show_text(str(advice))
    if not advice.supported:
        raise Exit(PARTLY)
