"""Run lm-eval's command ``lm_eval`` with our model types and tasks registered: ``python -m hf_posenc.eval …``.

lm-eval 0.4.13 reads no entry points, and looks a model type up before it reads the task files of ``--include_path``.
"""

from __future__ import annotations

import sys

from hf_posenc.eval.lm.load import require_lm_eval
from hf_posenc.eval.lm.register import register_models
from hf_posenc.eval.task_folder import TASKS


def main() -> None:
    """Run lm-eval's command line."""
    require_lm_eval()
    from lm_eval.__main__ import cli_evaluate

    register_models()
    sys.argv[1:] = with_our_tasks(sys.argv[1:])
    cli_evaluate()


def with_our_tasks(words: list[str]) -> list[str]:
    """``words`` with our task folder as the place to look for tasks, unless another one is named."""
    told = {"--include_path", "-h", "--help"} & set(words)
    return words if told or not words else [*words, "--include_path", str(TASKS)]


if __name__ == "__main__":
    main()
