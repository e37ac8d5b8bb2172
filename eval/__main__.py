"""Run lm-eval's command ``lm_eval`` with our model types and tasks registered: ``python -m hf_posenc.eval …``.

lm-eval 0.4.13 has no entry points, and looks up a model type before it loads the task files of ``--include_path``. An
error of this package ends the command with its message on stderr and exit code 1, without a traceback through lm-eval.
"""

from __future__ import annotations

import sys

from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import PosEncError
from hf_posenc.eval.catalogue import TASKS
from hf_posenc.eval.lm.load import register_models, require_lm_eval


def main() -> None:
    """Run lm-eval's command line."""
    try:
        with explained_imports():
            require_lm_eval()
            from lm_eval.__main__ import cli_evaluate

            register_models()
            sys.argv[1:] = with_our_tasks(sys.argv[1:])
            cli_evaluate()
    except PosEncError as error:
        sys.exit(f"Error: {error}")


def with_our_tasks(arguments: list[str]) -> list[str]:
    """Add our task folder as ``--include_path``, unless the arguments name a folder or ask for help."""
    complete = {"--include_path", "-h", "--help"} & {argument.partition("=")[0] for argument in arguments}
    return arguments if complete or not arguments else [*arguments, "--include_path", str(TASKS)]


if __name__ == "__main__":
    main()
