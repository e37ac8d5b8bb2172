"""Run lm-eval on tasks of ours and of its own, with its own options.

This is `lm_eval.simple_evaluate` without its survey of the machine, a second and a half at every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_posenc.errors import UnknownOption
from hf_posenc.eval.errors import NotMeasurable, TaskOptionOutOfRange
from hf_posenc.eval.lm.register import register_models
from hf_posenc.eval.quiet import suppress_output
from hf_posenc.eval.ruler import check_ruler, seeded, tokenizer_folder
from hf_posenc.eval.ruler_results import first_of_each_length, has_lengths, room_needed
from hf_posenc.eval.task_files import explained_task_errors
from hf_posenc.eval.task_index import manager_of
from hf_posenc.eval.validate import refuse_unread


@dataclass(frozen=True)
class LmEvalOptions:
    """Options of lm-eval's own command.

    Attributes:
        limit: documents of each task; at every length, where a task has several.
        num_fewshot: examples before each question.
        apply_chat_template: whether prompts are written as a conversation, by the tokenizer's template.
        fewshot_as_multiturn: whether each example is a turn of its own in the conversation.
        system_instruction: text before every prompt.
        gen_kwargs: how to generate, such as ``max_gen_toks`` and ``temperature``.
        log_samples: whether every request and response is kept.
    """

    limit: int | None = None
    num_fewshot: int | None = None
    apply_chat_template: bool = False
    fewshot_as_multiturn: bool = False
    system_instruction: str | None = None
    gen_kwargs: Mapping[str, Any] | None = None
    log_samples: bool = False

    def check(self, tokenizer: Any) -> None:
        """Refuse options that cannot take effect on this tokenizer, or on each other.

        Raises:
            NotMeasurable: the tokenizer has no chat template.
            TaskOptionOutOfRange: turns are asked for without a conversation.
        """
        if self.apply_chat_template and not getattr(tokenizer, "chat_template", None):
            raise NotMeasurable(
                "This tokenizer has no chat template. Use the tokenizer of an instruction-tuned model, or leave "
                "apply_chat_template out."
            )
        if self.fewshot_as_multiturn and not self.apply_chat_template:
            raise TaskOptionOutOfRange(
                "fewshot_as_multiturn makes turns of a conversation, and there is none. Pass apply_chat_template too."
            )

    @property
    def prompting(self) -> dict[str, Any]:
        """What shapes a prompt, as `lm_eval.evaluate` takes it."""
        return {
            "apply_chat_template": self.apply_chat_template, "system_instruction": self.system_instruction,
            "fewshot_as_multiturn": self.fewshot_as_multiturn,
        }  # fmt: skip

    def configure(self, tasks: Mapping[str, Any], seed: int) -> None:
        """Set few-shot examples and generation of the loaded tasks.

        Raises:
            UnknownOption: no task generates, and options of generation are given; or a task's own file rules out
                examples.
        """
        generating = [task for task in tasks.values() if task.get_config("output_type") == "generate_until"]
        if self.gen_kwargs and not generating:
            raise UnknownOption(
                f"None of the tasks {', '.join(tasks)} generates, and gen_kwargs were given. Leave them out; our "
                "retrieval tasks generate with the option scoring=generate."
            )
        for task in generating if self.gen_kwargs else ():
            task.set_config(key="generation_kwargs", value=dict(self.gen_kwargs or {}), update=True)
        for name, task in tasks.items():
            task.set_fewshot_seed(seed=seed)
            own = task.get_config("num_fewshot")
            if self.num_fewshot and own == 0:
                raise UnknownOption(f"The file of {name} rules out examples (num_fewshot: 0). Leave num_fewshot out.")
            if self.num_fewshot is not None or own is None:
                task.set_config(key="num_fewshot", value=self.num_fewshot or 0)


def run_tasks(
    lm: Any,
    tasks: Sequence[str],
    metadata: dict[str, Any],
    include_path: str | Path | None,
    options: LmEvalOptions,
    *,
    own_options: Mapping[str, Any] | None,
    grow: bool = False,
    quiet: bool = True,
) -> dict[str, Any]:
    """Run lm-eval; its results, with all samples.

    Args:
        lm: lm-eval's model object.
        tasks: names.
        metadata: of the tasks, with the tokenizer as an object.
        include_path: folder of the user's task files.
        options: lm-eval's own.
        own_options: those in ``metadata`` that were asked for by name; of tasks of ours, all must be known. None where
            they were checked for more tasks than these.
        grow: whether `max_length` may rise to what RULER's tasks request.
        quiet: hide progress bars.

    Returns:
        lm-eval's results; empty in all processes except the first.
    """
    from lm_eval import evaluate as lm_eval_evaluate

    register_models()
    options.check(metadata["tokenizer"])
    with suppress_output(quiet):
        loaded = load_tasks(tasks, metadata, include_path)
        if own_options is not None:
            refuse_unread(own_options, list(loaded["tasks"].values()), text=metadata["text"] is not None)
        check_answerable(lm, loaded["tasks"])
        options.configure(loaded["tasks"], metadata["seed"])
        by_length = [task for task in loaded["tasks"].values() if has_lengths(task)]
        chosen = chosen_documents(loaded["tasks"], options.limit) if by_length and options.limit else None
        if by_length and grow and not options.num_fewshot:
            chat = {"chat_template": lm.apply_chat_template} if options.apply_chat_template else {}
            some = chosen or {}
            needed = [
                room_needed(lm, task, some.get(task.config.task), **options.prompting, **chat) for task in by_length
            ]
            lm.max_length = max(lm.max_length, *needed)
        raw = lm_eval_evaluate(
            lm=lm, task_dict=loaded, bootstrap_iters=1000, limit=None if chosen else options.limit, samples=chosen,
            log_samples=True, **options.prompting,
        )  # fmt: skip
    if raw is None:  # not the first of several processes
        return {}
    about = lm.get_model_info() if hasattr(lm, "get_model_info") else {}
    return {**raw, "config": {"model": type(lm).__name__, "batch_size": lm.batch_size, **asdict(options), **about}}


def check_answerable(lm: Any, tasks: Mapping[str, Any]) -> None:
    """Refuse tasks of ours with requests of a kind that somebody else's model object cannot answer.

    Raises:
        NotMeasurable: there is one.
    """
    for name, task in tasks.items():
        kind = getattr(task, "request_type", None)
        if kind is not None and not hasattr(lm, kind):
            raise NotMeasurable(
                f"{name} needs requests of the type {kind}, which {type(lm).__name__} does not support. Pass the model "
                "itself, or choose other tasks."
            )


def load_tasks(tasks: Sequence[str], metadata: dict[str, Any], include_path: str | Path | None) -> dict[str, Any]:
    """Load tasks; those of lm-eval get the tokenizer by name, and the lengths as RULER calls them."""
    from lm_eval.tasks import TaskManager

    from hf_posenc.eval.task_index import folders

    ours = TaskManager(include_path=folders(include_path), include_defaults=False, metadata=metadata)
    own = [name for name in tasks if name in ours.all_tasks or Path(name).is_file()]
    others = [name for name in tasks if name not in own]
    if not others:
        with explained_task_errors(own):
            return dict(ours.load(own))
    tokenizer, lengths = metadata["tokenizer"], metadata.get("max_seq_lengths") or metadata["lengths"]
    with seeded(metadata["seed"]):
        check_ruler(others, tokenizer, lengths)
    with tokenizer_folder(tokenizer) as folder, seeded(metadata["seed"]):
        theirs = {**metadata, "text": None, "tokenizer": folder, "max_seq_lengths": list(lengths)}
        with explained_task_errors(others):
            loaded = dict(manager_of(others, include_path, theirs).load(others))
    for task in loaded["tasks"].values():
        task.config.metadata["tokenizer"] = getattr(tokenizer, "name_or_path", "")
    if own:
        with explained_task_errors(own):
            first = ours.load(own)
        loaded = {part: {**first.get(part, {}), **found} for part, found in loaded.items()}
    return loaded


def chosen_documents(tasks: Mapping[str, Any], limit: int) -> dict[str, list[int]]:
    """Numbers of the first ``limit`` documents of each task, of each length where it has several."""
    return {
        name: first_of_each_length(task, limit) if has_lengths(task) else list(range(min(limit, len(task.eval_docs))))
        for name, task in tasks.items()
    }
