"""Command line ``hf-posenc``: each command parses its arguments, makes one library call and shows the result.

Exit codes: 0 success, 1 failure, 2 invalid argument, 3 partly refused (the rest was done), 4 a check does not hold,
130 interrupted, 143 terminated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hf_posenc.cli.environment import DEBUG
from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.plugin_files import import_file


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; ``--debug`` and ``--import FILE`` may stand at any place."""
    from hf_posenc.cli.stopping import stoppable
    from hf_posenc.cli.threads import wait_passively

    wait_passively()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # until the process ends
    given = list(sys.argv[1:] if arguments is None else arguments)
    with stoppable():
        from hf_posenc.cli.app import app
        from hf_posenc.cli.errors import end
        from hf_posenc.cli.imports import taken
        from hf_posenc.cli.wording import plain_warnings

        try:
            with plain_warnings(), explained_imports():
                words, files = taken([word for word in given if word != DEBUG])
                for file in files:
                    import_file(file)
                app(args=words, prog_name="hf-posenc", obj={DEBUG: DEBUG in given})
        except (Exception, KeyboardInterrupt) as error:
            if DEBUG in given:
                raise
            end(error)
