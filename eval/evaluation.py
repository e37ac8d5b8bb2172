"""Evaluate a model through lm-eval in one call: model and tasks in, rows of numbers out.

A few lines over the limit, most of them the documentation of `evaluate`.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hf_posenc.eval.lm.load import language_model, model_name, require_lm_eval
from hf_posenc.eval.lm.register import register_models
from hf_posenc.eval.results.documents import DocumentScore, document_scores
from hf_posenc.eval.results.remarks import remarks_on
from hf_posenc.eval.results.rows import Row, rows_of, write_json
from hf_posenc.eval.task_folder import TASKS

CAUSAL_TASKS = ("posenc_ppl", "posenc_passkey")
MASKED_TASKS = ("posenc_mlm", "posenc_passkey")


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation: tidy rows, and the results of lm-eval they come from.

    Attributes:
        rows: one row per number; the same in every process.
        documents: scores of single documents, whose means are rows; the same in every process.
        raw: lm-eval's results; empty in all processes except the first.
        remarks: what a reader must know of these numbers; the same in every process.
        first: whether this is the process that reports.
    """

    rows: list[Row]
    raw: dict[str, Any]
    first: bool = True
    documents: list[DocumentScore] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write both to one JSON file, atomically.

        Of several processes, only the first writes.
        """
        if not self.first:
            return
        rows, documents = ([one.to_dict() for one in some] for some in (self.rows, self.documents))
        write_json(path, {"rows": rows, "lm_eval": self.raw, "documents": documents, "remarks": self.remarks})


def evaluate(
    model: Any,
    tokenizer: Any = None,
    *,
    tasks: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    samples: int = 16,
    scored: int = 64,
    keys: int = 8,
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    longest: int | None = None,
    text: Any = None,
    text_field: str = "text",
    document_separator: str | None = None,
    seed: int = 0,
    scheme: str | None = None,
    label: str | None = None,
    limit: int | None = None,
    include_path: str | Path | None = None,
    trust_tasks: bool = False,
    log_samples: bool = False,
    quiet: bool = True,
    on_request: Callable[[], None] | None = None,
    options: Mapping[str, Any] | None = None,
    **model_args: Any,
) -> Evaluation:
    """Evaluate a model at several context lengths.

    Args:
        model: a live model, patched or not; the name of a model, a PEFT adapter or a bundled model
            (``starter:llama``); or an lm-eval model object.
        tokenizer: of a live model; by default loaded with a named model.
        tasks: lm-eval task names; by default loss and passkey retrieval.
        lengths: context lengths in tokens; by default the trained length, doubled up to the target length.
        samples: windows of text, at random places of all its parts.
        scored: tokens scored at the end of each window.
        keys: passkeys, each inserted at every depth.
        depths: relative depths of the key in the filler text, 0 … 1.
        longest: context in tokens available before every target, by default the longest length; with the same value,
            runs with other lengths have the same targets.
        text: one or several files, folders and ``hub:NAME:SPLIT``, or `datasets` objects; by default held-out modules
            of the standard library. A record of jsonl, json, csv or parquet is a document; no window crosses two.
        text_field: column of a record that holds its text; where there is no ``text``, its ``messages`` are read.
        document_separator: what separates the documents of plain text files; by default each file is one.
        seed: random seed of keys, masks and the places of windows.
        scheme: scheme to patch in first, with ``factor``, ``target_length`` and its options from ``model_args``.
        label: name of the scheme in rows; by default its own, or ``"unpatched"``.
        limit: documents per length, for a quick look.
        include_path: folder of further task files, which can run code.
        trust_tasks: whether task files from outside the installed packages may run.
        log_samples: keep every request and response in ``raw``.
        quiet: hide lm-eval's progress bars.
        on_request: called after each scored request.
        options: further options of tasks, such as ``stride``, ``docs`` or ``alphabet``; see
            `hf_posenc.eval.tasks.sweep`.
        **model_args: further arguments of `PosEncLM`.

    Of several processes (see `hf_posenc.eval.lm.launch`) each scores its share of the documents of a model given by
    name, and all return the same rows.
    """
    from hf_posenc.core.memory import check_text_memory
    from hf_posenc.eval.catalogue import check_known, check_text_used, check_trusted
    from hf_posenc.eval.lm.launch import from_first
    from hf_posenc.eval.task_files import check_task_files
    from hf_posenc.eval.texts.measured_text import MeasuredText, measured_text
    from hf_posenc.eval.validate import check_measure, check_options, check_tasks

    require_lm_eval()
    names = check_tasks(tasks, include_path)
    wanted, measure = check_measure(
        lengths=lengths, samples=samples, scored=scored, keys=keys, depths=depths, seed=seed, limit=limit,
        longest=longest,
    )  # fmt: skip
    options = check_options(options)
    own_text = measured_text(text, field=text_field, separator=document_separator)
    check_trusted(names, include_path, trust=trust_tasks)
    check_task_files(names, include_path)
    if not trust_tasks:  # a trusted file is a task by its path
        check_known(names, include_path)
    if text is not None and not isinstance(text, MeasuredText):  # `compare` gives that, and has looked at all tasks
        check_text_used(names)
    with suppress_output(quiet):
        lm = language_model(model, tokenizer, scheme=scheme, on_request=on_request, **model_args)
    lengths = sorted(wanted or default_lengths(lm))
    if hasattr(lm, "rows_at_once"):  # else somebody else's model object
        check_text_memory(lm.model, lengths[-1], lm.rows_at_once(lengths[-1]))
    if lm.max_length < lengths[-1] or "max_length" not in model_args:
        lm.max_length = lengths[-1]
    metadata = {
        **measure, "lengths": lengths, "longest": longest, "text": None if text is None else own_text,
        "field": text_field, "separator": document_separator, "tokenizer": lm.tokenizer, **options,
    }  # fmt: skip
    limit = metadata.pop("limit")
    chosen = names or list(MASKED_TASKS if type(lm).__name__ == "PosEncMLM" else CAUSAL_TASKS)
    raw = run_tasks(lm, chosen, metadata, include_path, extra=options, limit=limit, log_samples=True, quiet=quiet)
    first = lm.rank == 0
    documents = document_scores(raw)  # of samples, which lm-eval gathers from all processes
    rows = rows_of(raw, scheme=label or lm.scheme_name, model=model_name(lm), documents=documents) if first else []
    rows, documents, remarks = from_first(lm, (rows, documents, remarks_on(raw, rows)))
    if first and not log_samples:
        del raw["samples"]
        raw["config"]["log_samples"] = False
    return Evaluation(rows, raw, first, documents, remarks)


def run_tasks(
    lm: Any,
    tasks: Sequence[str],
    metadata: dict[str, Any],
    include_path: str | Path | None,
    *,
    quiet: bool,
    extra: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> dict[str, Any]:
    """Run lm-eval on our task folder.

    This is `lm_eval.simple_evaluate` without its survey of the machine, a second and a half at every call. lm-eval's
    own tasks, more than ten thousand, are only scanned for when one of them is requested.
    """
    from lm_eval import evaluate as lm_eval_evaluate
    from lm_eval.tasks import TaskManager

    from hf_posenc.eval.task_files import loading
    from hf_posenc.eval.validate import refuse_unread

    register_models()
    folders = [str(TASKS)] + ([] if include_path is None else [str(include_path)])
    with suppress_output(quiet):
        with loading(tasks):
            manager = TaskManager(include_path=folders, include_defaults=False, metadata=metadata)
            if not set(tasks) <= set(manager.all_tasks):
                manager = TaskManager(include_path=folders, metadata=metadata)
            loaded = manager.load(list(tasks))
        refuse_unread(extra, loaded["tasks"].values())
        for task in loaded["tasks"].values():
            task.set_fewshot_seed(seed=metadata["seed"])
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
        raw = lm_eval_evaluate(lm=lm, task_dict=loaded, bootstrap_iters=1000, **options)
    if raw is None:  # not the first of several processes
        return {}
    return {
        **raw,
        "config": {"model": type(lm).__name__, "batch_size": lm.batch_size, **options, **lm.get_model_info()},
    }


@contextmanager
def suppress_output(quiet: bool) -> Iterator[None]:
    """Hide the progress bars of lm-eval, which have no switch, and its advice about live models."""
    if not quiet:
        yield
        return
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def default_lengths(lm: Any) -> list[int]:
    """The trained length and its doublings up to the model's target; its own length where nothing is patched."""
    report = lm.report
    trained, target = report.get("trained_length") or lm.max_length, report.get("target_length") or lm.max_length
    lengths = [trained]
    while 2 * lengths[-1] <= target:
        lengths.append(2 * lengths[-1])
    return lengths
