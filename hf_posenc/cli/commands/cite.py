"""``hf-posenc cite``: BibTeX of the papers that schemes come from."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson
from hf_posenc.schemes.citations import cite


def cite_command(
    names: Annotated[
        list[str] | None, Argument(help="Schemes, or compositions such as yarn+logn. Without any: this package.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write BibTeX of the papers that schemes come from."""
    if as_json:
        output.show_json({name: cite(name) for name in names} if names else {"hf-posenc": cite()})
    else:
        output.show_text(cite(*names or ()))
