"""What is said of the prompts that tasks write themselves: which coincide, and what lm-eval cannot add to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_posenc.eval.errors import NotMeasurable

SHAPING = ("num_fewshot", "apply_chat_template", "system_instruction")
REPEATED = "repeated_prompts"
"""Where a task's metadata has, for each length with equal prompts, how many it asks and how many differ."""


def repeated_prompts(documents: Sequence[Mapping[str, Any]], cells: Sequence[Any]) -> dict[str, list[int]]:
    """How many prompts are asked, and how many of them differ, at every length with equal ones.

    Args:
        documents: those with ``prompts``, one for each cell.
        cells: lengths and depths.
    """
    at_length: dict[int, list[str]] = {}
    for document in documents:
        for (length, _), prompt in zip(cells, document.get("prompts", ()), strict=False):
            at_length.setdefault(length, []).append(prompt)
    return {
        str(length): [len(prompts), len(set(prompts))]
        for length, prompts in at_length.items()
        if len(set(prompts)) < len(prompts)
    }


def refuse_prompting(config: Any, options: Mapping[str, Any]) -> None:
    """Refuse examples, a conversation or a system instruction, which would be recorded and not used.

    Args:
        config: of the task.
        options: what lm-eval builds its requests with.

    Raises:
        NotMeasurable: one is asked for.
    """
    asked = {"num_fewshot": config.num_fewshot, **options}
    for name in SHAPING:
        if asked.get(name):
            raise NotMeasurable(
                f"{config.task} writes prompts of its own, of exactly the length asked for, so {name} has no effect "
                "on them. Leave it out; lm-eval's own tasks take it."
            )
