"""``hf-posenc env``: what a bug report needs."""

from __future__ import annotations

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson
from hf_posenc.cli.environment import environment


def env(as_json: AsJson = False) -> None:
    """Show what a bug report needs.

    Versions, devices and the environment variables that matter; secrets are hidden.
    """
    seen = environment()
    if as_json:
        output.show_json(seen)
        return
    for title, values in seen.items():
        output.show_text(f"{title}\n" + "\n".join(f"  {name:<28}{value}" for name, value in values.items()))
