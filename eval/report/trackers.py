"""Send the numbers of a comparison to experiment trackers, through transformers' callbacks as fine-tuning does.

Every scheme's metric is a curve, ``TASK/METRIC/SCHEME``, over context length as the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.training.config import check_trackers


def report_to_trackers(comparison: Comparison, names: Sequence[str], folder: Path) -> None:
    """Send all numbers over all depths that belong to a length, shortest length first.

    Args:
        comparison: with the numbers.
        names: of trackers, such as ``trackio``, ``wandb`` or ``tensorboard``; their packages have to be installed.
        folder: of the results, in which trackers without a server write.

    Raises:
        TrainingImpossible: a tracker is unknown.
        MissingPackage: its package is not installed.
    """
    check_trackers(names)
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    logs: dict[int, dict[str, float]] = defaultdict(dict)
    for row in comparison.rows:
        if row.length is not None and row.depth is None:
            logs[row.length][f"{row.task}/{row.metric}/{row.scheme}"] = row.value
    arguments = TrainingArguments(str(folder / "trackers"), report_to="none", use_cpu=True)
    state, control = TrainerState(is_world_process_zero=True), TrainerControl()
    for callback in [INTEGRATION_TO_CALLBACK[name]() for name in names]:
        callback.on_train_begin(arguments, state, control)
        for length, values in sorted(logs.items()):
            state.global_step = length
            callback.on_log(arguments, state, control, logs=values)
        callback.on_train_end(arguments, state, control)
