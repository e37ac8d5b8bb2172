"""Evaluate a model at several context lengths through lm-eval: loss of the same last tokens, passkey retrieval, RULER.

    from hf_posenc.eval import evaluate
    evaluation = evaluate(model, tokenizer, lengths=[256, 512, 1024])

    from hf_posenc.eval import compare
    comparison = compare("folder or name", "unpatched,yarn,self_extend", out="results/compare")

In several processes, on GPUs or CPUs, each process scores a share of the documents. The first reports the results:

    accelerate launch --multi_gpu --num_processes 2 -m hf_posenc.cli eval --model NAME --lengths 4096

To run lm-eval's own command with our model types and tasks, use ``python -m hf_posenc.eval``. The command ``lm_eval``
does not know them: before release 0.5, lm-eval reads no entry points.

Importing this package imports neither torch nor lm-eval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.eval.catalogue import TASKS as TASKS
    from hf_posenc.eval.comparison.models import MeasuredModel as MeasuredModel
    from hf_posenc.eval.comparison.run import compare as compare
    from hf_posenc.eval.evaluation import Evaluation as Evaluation
    from hf_posenc.eval.evaluation import evaluate as evaluate
    from hf_posenc.eval.lm.load import MODEL_TYPES as MODEL_TYPES
    from hf_posenc.eval.lm.load import register_models as register_models
    from hf_posenc.eval.results.comparison import Comparison as Comparison

__getattr__, __dir__, __all__ = lazy_exports(__name__)
