"""``hf-posenc env``: versions, devices and environment variables for a bug report."""

from __future__ import annotations

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson
from hf_posenc.cli.environment import environment


def env(as_json: AsJson = False) -> None:
    """Show versions, devices and environment variables for a bug report.

    Secrets are hidden.
    """
    found = environment()
    if as_json:
        output.show_json(found)
        return
    for title, values in found.items():
        output.show_text(f"{title}\n" + "\n".join(f"  {name:<28}{value}" for name, value in values.items()))
