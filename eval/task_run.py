"""Run lm-eval on tasks of ours and of its own, with its own options.

This is `lm_eval.simple_evaluate` without its survey of the machine, a second and a half at every call.
"""

from __future__ import annotations

import io
import logging
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from hf_posenc.errors import BadComparison, UnknownOption, nearest, shown
from hf_posenc.eval.catalogue import explained_task_errors, folders, manager_of
from hf_posenc.eval.errors import NotMeasurable, TaskOptionOutOfRange
from hf_posenc.eval.lm.load import register_models
from hf_posenc.eval.settings import EvaluateSettings
from hf_posenc.eval.tasks.sweep import Sweep

LM_EVAL_OPTIONS = (
    "limit", "num_fewshot", "apply_chat_template", "fewshot_as_multiturn", "system_instruction", "gen_kwargs",
    "log_samples",
)  # fmt: skip
"""Settings that are lm-eval's own, as its results name them."""


RULER = ("ruler", "longcxt", "niah_")
"""Beginnings of the names of lm-eval's RULER tasks and of their groups."""


class SharedOptions(dict[str, Any]):
    """Options of tasks that were checked for all tasks of a comparison together; a single task may read none."""


def run_tasks(lm: Any, tasks: Sequence[str], metadata: dict[str, Any], settings: EvaluateSettings) -> dict[str, Any]:
    """Run lm-eval; its results, with all samples.

    Returns:
        lm-eval's results; empty in all processes except the first.
    """
    from lm_eval import evaluate as lm_eval_evaluate

    register_models()
    check_prompts(settings, metadata["tokenizer"])
    with suppress_output():
        loaded = load_tasks(tasks, metadata, settings.include_path)
        if not isinstance(settings.options, SharedOptions):
            refuse_unread(settings.options, list(loaded["tasks"].values()), text=metadata["text"] is not None)
        check_answerable(lm, loaded["tasks"])
        configure(loaded["tasks"], settings)
        raw = lm_eval_evaluate(
            lm=lm, task_dict=loaded, bootstrap_iters=1000, limit=settings.limit, log_samples=True,
            apply_chat_template=settings.apply_chat_template, system_instruction=settings.system_instruction,
            fewshot_as_multiturn=settings.fewshot_as_multiturn,
        )  # fmt: skip
    if raw is None:  # not the first of several processes
        return {}
    about = lm.get_model_info() if hasattr(lm, "get_model_info") else {}
    own = {name: getattr(settings, name) for name in LM_EVAL_OPTIONS}
    return {**raw, "config": {"model": type(lm).__name__, "batch_size": lm.batch_size, **own, **about}}


def check_prompts(settings: EvaluateSettings, tokenizer: Any) -> None:
    """Refuse settings of prompts that cannot take effect on this tokenizer, or on each other."""
    if settings.apply_chat_template and not getattr(tokenizer, "chat_template", None):
        raise NotMeasurable(
            "This tokenizer has no chat template. Use the tokenizer of an instruction-tuned model, or leave "
            "apply_chat_template out."
        )
    if settings.fewshot_as_multiturn and not settings.apply_chat_template:
        raise TaskOptionOutOfRange("fewshot_as_multiturn needs a chat template. Pass apply_chat_template too.")


def configure(tasks: Mapping[str, Any], settings: EvaluateSettings) -> None:
    """Set few-shot examples and generation of the loaded tasks."""
    generating = [task for task in tasks.values() if task.get_config("output_type") == "generate_until"]
    if settings.gen_kwargs and not generating:
        raise UnknownOption(
            f"None of the tasks {', '.join(tasks)} generates, and gen_kwargs were given. Leave them out; our "
            "retrieval tasks generate with the option scoring=generate."
        )
    for task in generating if settings.gen_kwargs else ():
        task.set_config(key="generation_kwargs", value=dict(settings.gen_kwargs), update=True)
    for name, task in tasks.items():
        task.set_fewshot_seed(seed=settings.seed)
        own = task.get_config("num_fewshot")
        if settings.num_fewshot and own == 0:
            raise UnknownOption(f"The file of {name} rules out examples (num_fewshot: 0). Leave num_fewshot out.")
        if settings.num_fewshot is not None or own is None:
            task.set_config(key="num_fewshot", value=settings.num_fewshot or 0)


def refuse_unread(options: Mapping[str, Any], tasks: Sequence[Any], *, text: bool = False) -> None:
    """Refuse options, and a text, that none of the tasks uses; tasks that are not ours may use any."""
    known = set(Sweep.model_fields)
    if not all(hasattr(task, "sweep") for task in tasks):
        return
    if text and not any(task.reads_text for task in tasks):
        raise BadComparison(
            "With these options none of the tasks reads the text. Leave it out, or the option haystack."
        )
    for task in tasks:
        known |= set(type(task.options).model_fields)
    for name in options:
        if name not in known:
            raise UnknownOption(
                f"None of these tasks takes the option {shown(name)}.{nearest(name, known)} Leave it out; "
                f"they take {', '.join(sorted(known))}."
            )


def check_answerable(lm: Any, tasks: Mapping[str, Any]) -> None:
    """Refuse tasks of ours with requests of a kind that somebody else's model object cannot answer."""
    for name, task in tasks.items():
        kind = getattr(task, "request_type", None)
        if kind is not None and not hasattr(lm, kind):
            raise NotMeasurable(
                f"{name} needs requests of the type {kind}, which {type(lm).__name__} does not support. Pass the model "
                "itself, or choose other tasks."
            )


def load_tasks(tasks: Sequence[str], metadata: dict[str, Any], include_path: str | Path | None) -> dict[str, Any]:
    """Load tasks; those of lm-eval get the tokenizer by name."""
    from lm_eval.tasks import TaskManager

    ours = TaskManager(include_path=folders(include_path), include_defaults=False, metadata=metadata)
    own = [name for name in tasks if name in ours.all_tasks or Path(name).is_file()]
    others = [name for name in tasks if name not in own]
    if ruler := [name for name in others if name.startswith(RULER)]:
        raise NotMeasurable(
            f"lm-eval's {ruler[0]} takes its lengths and its tokenizer from --metadata. Choose posenc_niah_single and "
            "its like, or run it with python -m hf_posenc.eval."
        )
    loaded: dict[str, Any] = {}
    if others:
        theirs = {**metadata, "text": None, "tokenizer": getattr(metadata["tokenizer"], "name_or_path", "")}
        with seeded(metadata["seed"]), explained_task_errors(others):
            loaded = dict(manager_of(others, include_path, theirs).load(others))
    if own:
        with explained_task_errors(own):
            first = ours.load(own)
        loaded = {part: {**first.get(part, {}), **loaded.get(part, {})} for part in {**first, **loaded}}
    return loaded


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators that tasks may draw from when they are loaded, as lm-eval does at seed 0; set them back."""
    import numpy

    state, numpy_state = random.getstate(), numpy.random.get_state()
    random.seed(seed)
    numpy.random.seed((1234 + seed) % 2**32)
    try:
        yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)


@contextmanager
def suppress_output() -> Iterator[None]:
    """Hide lm-eval's progress bars, its advice about loaded models, and what its generators print.

    Warnings of this package are given after the block; there they would be hidden with the rest.
    """
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            redirect_stderr(io.StringIO()),
            redirect_stdout(io.StringIO()),
        ):
            yield
    finally:
        logger.setLevel(level)
    for warning in caught:
        if warning.category.__module__.startswith("hf_posenc."):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
