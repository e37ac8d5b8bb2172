"""Run lm-eval on tasks of ours and of its own.

This is `lm_eval.simple_evaluate` without its survey of the machine, which takes a second and a half per call.
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
from hf_posenc.eval.catalogue import explained_task_errors, folders, manager_of, read_by, task_class, task_files
from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.lm.load import register_models
from hf_posenc.eval.settings import Measurement
from hf_posenc.eval.tasks.sweep import Sweep
from hf_posenc.eval.texts.haystack import OWN_TEXT

RULER = ("ruler", "longcxt", "niah_")
"""Prefixes of the names of lm-eval's RULER tasks and task groups."""


def run_tasks(lm: Any, settings: Measurement, tokenizer: Any) -> dict[str, Any]:
    """Run lm-eval; its results, with all samples.

    Returns:
        lm-eval's results; empty in all processes except the first.
    """
    from lm_eval import evaluate as lm_eval_evaluate

    register_models()
    with suppress_output():
        loaded = load_tasks(settings.tasks, settings.metadata(tokenizer), settings.include_path)
        check_answerable(lm, loaded["tasks"])
        for task in loaded["tasks"].values():
            task.set_fewshot_seed(seed=settings.seed)
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
        raw = lm_eval_evaluate(lm=lm, task_dict=loaded, bootstrap_iters=1000, limit=settings.limit, log_samples=True)
    if raw is None:  # not the first of several processes
        return {}
    about = lm.get_model_info() if hasattr(lm, "get_model_info") else {}
    about = {"model": type(lm).__name__, "batch_size": lm.batch_size, "limit": settings.limit, **about}
    return {**raw, "config": about}


def check_options(settings: Measurement) -> None:
    """Refuse options, and a text, that none of the tasks reads; tasks that are not ours may read any."""
    if not task_files().keys() >= set(settings.tasks):
        return
    fields = {task: task_class(task).Options.model_fields for task in settings.tasks}
    readers = read_by("text", settings.tasks)
    if settings.options.get("haystack", OWN_TEXT) != OWN_TEXT:
        readers = [task for task in readers if "haystack" not in fields[task]]
    if settings.text is not None and not readers:
        raise BadComparison(
            "With these options none of the tasks reads the text. Leave it out, or the option haystack."
        )
    known = set(Sweep.model_fields).union(*fields.values())
    for name in settings.options:
        if name not in known:
            raise UnknownOption(
                f"None of these tasks takes the option {shown(name)}.{nearest(name, known)} Leave it out; "
                f"they take {', '.join(sorted(known))}."
            )


def check_answerable(lm: Any, tasks: Mapping[str, Any]) -> None:
    """Refuse tasks of ours whose type of request the model object cannot answer."""
    for name, task in tasks.items():
        request_type = getattr(task, "request_type", None)
        if request_type is not None and not hasattr(lm, request_type):
            raise NotMeasurable(
                f"{name} needs requests of the type {request_type}, which {type(lm).__name__} does not support. Pass "
                "the model itself, or choose other tasks."
            )


def load_tasks(tasks: Sequence[str], metadata: dict[str, Any], include_path: str | Path | None) -> dict[str, Any]:
    """Load our tasks and those of lm-eval, which get the tokenizer by name."""
    from lm_eval.tasks import TaskManager

    our_manager = TaskManager(include_path=folders(include_path), include_defaults=False, metadata=metadata)
    own = [name for name in tasks if name in our_manager.all_tasks]
    others = [name for name in tasks if name not in own]
    if ruler := [name for name in others if name.startswith(RULER)]:
        raise NotMeasurable(
            f"lm-eval's {ruler[0]} takes its lengths and its tokenizer from --metadata. Choose posenc_niah_single and "
            "its like, or run it with python -m hf_posenc.eval."
        )
    loaded: dict[str, Any] = {}
    if others:
        plain_metadata = {**metadata, "text": None, "tokenizer": getattr(metadata["tokenizer"], "name_or_path", "")}
        with seeded(metadata["seed"]), explained_task_errors(others):
            loaded = dict(manager_of(others, include_path, plain_metadata).load(others))
    if own:
        with explained_task_errors(own):
            own_loaded = our_manager.load(own)
        for part, entries in own_loaded.items():
            loaded[part] = {**entries, **loaded.get(part, {})}
    return loaded


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators that tasks may draw from while they load, as lm-eval does; restore them afterwards."""
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

    Warnings of this package are issued after the block; inside it they would be hidden with the rest.
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
