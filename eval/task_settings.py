"""Settings of a sweep that only some of our tasks read: how many windows, keys and questions, and at which depths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_posenc.errors import UnknownOption
from hf_posenc.eval.catalogue import own_tasks, without_groups

WINDOWS = frozenset({
    "posenc_copy", "posenc_copy_gain", "posenc_docs", "posenc_induction", "posenc_key_tokens", "posenc_mlm",
    "posenc_mlm_recall", "posenc_ppl", "posenc_sliding_ppl", "posenc_token_nll",
})  # fmt: skip
HIDDEN = frozenset({
    "posenc_association", "posenc_niah_multikey", "posenc_niah_multiquery", "posenc_niah_multivalue",
    "posenc_niah_single", "posenc_passkey", "posenc_passkey_gen", "posenc_qa", "posenc_qa_file", "posenc_rerank",
})  # fmt: skip
QUESTIONS = HIDDEN | {
    "posenc_babilong", "posenc_cwe", "posenc_fwe", "posenc_icl", "posenc_longbench2", "posenc_ruler_file", "posenc_vt",
}  # fmt: skip
TASKS_READING: Mapping[str, frozenset[str]] = {
    "samples": WINDOWS,
    "scored": WINDOWS - {"posenc_induction", "posenc_sliding_ppl", "posenc_token_nll"},
    "keys": QUESTIONS,
    "depths": HIDDEN | {"posenc_induction"},
}
"""Setting to those of our tasks that read it."""


def check_settings_read(asked: Sequence[str], tasks: Sequence[str]) -> None:
    """Refuse settings that none of the tasks reads; tasks that are not ours may read any.

    Args:
        asked: names of settings that were given by name.
        tasks: names of tasks and groups; without any, the default reads all settings.

    Raises:
        UnknownOption: there is one.
    """
    chosen, known = without_groups(tasks), own_tasks()
    if not chosen or not all(task in known for task in chosen):
        return
    for name in asked:
        if not TASKS_READING[name] & set(chosen):
            raise UnknownOption(
                f"None of the tasks {', '.join(chosen)} reads {name}. Leave {name} out, or add one of "
                f"{', '.join(sorted(TASKS_READING[name]))}."
            )


def reads(task: str, setting: str) -> bool:
    """Whether a task reads a setting; one that is not ours may read any."""
    return setting not in TASKS_READING or task in TASKS_READING[setting] or task not in own_tasks()


def read_by(name: str, tasks: Sequence[str]) -> list[str]:
    """Those of the tasks that read a setting."""
    return [task for task in tasks if task in TASKS_READING[name]]
