"""Refuse what shapes prompts that lm-eval writes, of tasks that write their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_posenc.eval.errors import NotMeasurable

SHAPING = ("num_fewshot", "apply_chat_template", "system_instruction")


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
