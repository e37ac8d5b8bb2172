"""Measure a model at many lengths through lm-eval: loss of the same last tokens, pass keys, masked tokens.

    from hf_posenc.eval import evaluate
    evaluation = evaluate(model, tokenizer, lengths=[256, 512, 1024])

    from hf_posenc.eval import compare
    comparison = compare("folder or name", "unscaled,yarn,self_extend", out="results/compare")

In several processes, on GPUs or without, each document is scored by one of them and the first has the results:

    accelerate launch --multi_gpu --num_processes 2 -m hf_posenc.cli eval --model NAME --length 4096

lm-eval's own command knows our model types and tasks as ``python -m hf_posenc.eval``, and by itself where a task is
given as the path of its file: ``lm_eval --model hf_posenc --tasks path/to/posenc_ppl.yaml``.

Importing this package imports neither torch nor lm-eval.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_posenc.eval.comparison.result import Comparison
    from hf_posenc.eval.comparison.run import compare
    from hf_posenc.eval.evaluation import Evaluation, evaluate

TASKS = Path(__file__).parent / "tasks"
"""The folder of our task files, for lm-eval's ``include_path``."""

MODEL_TYPES = {"hf_posenc": "PosEncLM", "hf_posenc_mlm": "PosEncMLM"}
"""lm-eval model types and their classes in `hf_posenc.eval.lm.models`."""

FACE = {
    "Comparison": "hf_posenc.eval.comparison.result",
    "Evaluation": "hf_posenc.eval.evaluation",
    "compare": "hf_posenc.eval.comparison.run",
    "evaluate": "hf_posenc.eval.evaluation",
}

__all__ = ["MODEL_TYPES", "TASKS", "Comparison", "Evaluation", "compare", "evaluate", "register_models"]


def register_models() -> None:
    """Make ``hf_posenc`` and ``hf_posenc_mlm`` known to lm-eval, which does not read entry points before 0.5."""
    from lm_eval.api.registry import model_registry

    for name, cls in MODEL_TYPES.items():
        if name not in model_registry:
            model_registry.register(name, target=f"hf_posenc.eval.lm.models:{cls}")


def __getattr__(name: str) -> Any:
    if name in FACE:
        return getattr(import_module(FACE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
