"""Evaluate a model through lm-eval in one call: model and tasks in, rows of numbers out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_posenc.core.evaluation_mode import evaluation_mode_if_live
from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.lengths import doubling_lengths
from hf_posenc.eval.lm.load import language_model, model_name, require_lm_eval, scheme_name
from hf_posenc.eval.quiet import suppress_output
from hf_posenc.eval.results.documents import DocumentScore, document_scores
from hf_posenc.eval.results.remarks import remarks_on
from hf_posenc.eval.results.rows import Row, rows_of, write_json

if TYPE_CHECKING:
    from hf_posenc.eval.texts.measured_text import TextToMeasure

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


@explained_imports()
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
    text: TextToMeasure = None,
    text_field: str = "text",
    document_separator: str | None = None,
    seed: int = 0,
    scheme: str | None = None,
    label: str | None = None,
    limit: int | None = None,
    include_path: str | Path | None = None,
    trust_tasks: bool = False,
    log_samples: bool = False,
    metadata: Mapping[str, Any] | None = None,
    num_fewshot: int | None = None,
    apply_chat_template: bool = False,
    fewshot_as_multiturn: bool = False,
    system_instruction: str | None = None,
    gen_kwargs: str | Mapping[str, Any] | None = None,
    quiet: bool = True,
    on_request: Callable[[], None] | None = None,
    options: Mapping[str, Any] | None = None,
    **model_args: Any,
) -> Evaluation:
    """Evaluate a model at several context lengths.

    Args:
        model: a live model, patched or not; the name of a model, a PEFT adapter or a bundled model
            (``starter:llama``); or an lm-eval model object, such as an `HFLM`.
        tokenizer: of a live model; by default loaded with a named model.
        tasks: lm-eval task names; by default loss and passkey retrieval.
        lengths: context lengths in tokens; by default the trained length, its doublings and the target length.
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
        scheme: scheme to patch in first, with ``factor``, ``target_length`` and its options from ``model_args``; a live
            model is unpatched again when this returns.
        label: name of the scheme in rows; by default its own, or ``"unpatched"``.
        limit: documents per length, for a quick look.
        include_path: folder of further task files, which can run code.
        trust_tasks: whether task files from outside the installed packages may run.
        log_samples: keep every request and response in ``raw``.
        metadata: options of tasks under the name that lm-eval has for them: what is said of ``options`` holds for them.
        num_fewshot, apply_chat_template, fewshot_as_multiturn, system_instruction: lm-eval's own, for tasks whose
            prompts lm-eval writes; our own tasks refuse them.
        gen_kwargs: how to generate, ``"max_gen_toks=20,temperature=0"`` or a dictionary, for tasks that do.
        quiet: hide lm-eval's progress bars.
        on_request: called after each scored request.
        options: further options of tasks, such as ``stride``, ``docs`` or ``alphabet``; see
            `hf_posenc.eval.tasks.sweep`. Settings of a sweep among them (``lengths``, ``samples``, ``scored``,
            ``keys``, ``depths``, ``seed``, ``longest``) take the place of the arguments of these names.
        **model_args: further arguments of `PosEncLM`.

    Raises:
        MissingPackage: lm-eval is not installed.
        TaskOptionOutOfRange: a length, a number or an option of a task is out of range, or an option is passed twice.
        UnknownOption: an option that none of the tasks, or not the model object, takes.
        BadComparison: there is no such task, or none of the tasks reads the text.
        UntrustedTask: a task file from outside the installed packages, without ``trust_tasks``.
        NotMeasurable: the model has no loss for these tasks, or the tasks take no such prompts.
        RequestTooLong: a request is longer than the context window.
        PosEncError: the model cannot be loaded or patched, or the text not be read.

    Of several processes (see `hf_posenc.eval.lm.launch`) each scores its share of the documents of a model given by
    name, and all return the same rows.
    """
    from hf_posenc.eval.catalogue import check_text_used
    from hf_posenc.eval.task_run import LmEvalOptions, run_tasks
    from hf_posenc.eval.texts.measured_text import MeasuredText, measured_text
    from hf_posenc.eval.validate import (
        SharedOptions,
        check_generation,
        check_measure,
        check_shots,
        check_tasks,
        options_of_both,
        take_settings,
    )

    require_lm_eval()
    from hf_posenc.eval.lm.models import PosEncMLM  # needs lm-eval

    names = check_tasks(tasks, include_path)
    checked = isinstance(options, SharedOptions)
    options = options_of_both(options, metadata)
    settings = take_settings(options, {
        "lengths": lengths, "samples": samples, "scored": scored, "keys": keys, "depths": depths, "seed": seed,
        "longest": longest,
    })  # fmt: skip
    wanted, measure = check_measure(limit=limit, **settings)
    lm_eval_options = LmEvalOptions(
        limit=measure.pop("limit"), num_fewshot=check_shots(num_fewshot), apply_chat_template=apply_chat_template,
        fewshot_as_multiturn=fewshot_as_multiturn, system_instruction=system_instruction,
        gen_kwargs=check_generation(gen_kwargs), log_samples=log_samples,
    )  # fmt: skip
    own_text = measured_text(text, field=text_field, separator=document_separator)
    check_sources(names, include_path, trust=trust_tasks)
    if text is not None and not isinstance(text, MeasuredText):  # `compare` gives that, and has looked at all tasks
        check_text_used(names)
    with evaluation_mode_if_live(model), unpatched_afterwards(model):
        with suppress_output(quiet):
            lm = language_model(model, tokenizer, scheme=scheme, on_request=on_request, **model_args)
        lengths = sorted(wanted or default_lengths(lm))
        fit_length(lm, lengths[-1], given="max_length" in model_args)
        own = lm.tokenizer if tokenizer is None or isinstance(tokenizer, (str, Path)) else tokenizer
        described = {
            **measure, "lengths": lengths, "longest": settings["longest"], "text": None if text is None else own_text,
            "field": text_field, "separator": document_separator, "tokenizer": own, **options,
        }  # fmt: skip
        chosen = names or list(MASKED_TASKS if isinstance(lm, PosEncMLM) else CAUSAL_TASKS)
        raw = run_tasks(
            lm, chosen, described, include_path, lm_eval_options, own_options=None if checked else options, quiet=quiet,
            grow="max_length" not in model_args,
        )  # fmt: skip
        evaluation = evaluation_of(lm, raw, label or scheme_name(lm))
    if not log_samples:
        raw.pop("samples", None)
    return evaluation


@contextmanager
def unpatched_afterwards(model: Any) -> Iterator[None]:
    """Take off what the block patches into a live model that has no scheme, also where it raises."""
    from hf_posenc.patching.patch import unpatch_model
    from hf_posenc.patching.state import is_patched

    plain = isinstance(model, nn.Module) and not is_patched(model)
    try:
        yield
    finally:
        if plain and is_patched(model):
            unpatch_model(model)


def check_sources(names: list[str], include_path: str | Path | None, *, trust: bool) -> None:
    """Refuse task files that may not run, cannot be read, or do not exist, before a model is loaded."""
    from hf_posenc.eval.catalogue import check_known, check_trusted
    from hf_posenc.eval.task_files import check_task_files

    check_trusted(names, include_path, trust=trust)
    check_task_files(names, include_path)
    if not trust:  # a trusted file is a task by its path
        check_known(names, include_path)


def evaluation_of(lm: Any, raw: dict[str, Any], scheme: str) -> Evaluation:
    """Turn lm-eval's results into rows and scores of documents, the same in every process."""
    from hf_posenc.eval.lm.launch import from_first

    first = lm.rank == 0
    rows, documents = rows_and_documents(raw, scheme, model_name(lm)) if first else ([], [])
    rows, documents, remarks = from_first(lm, (rows, documents, remarks_on(raw, rows)))
    return Evaluation(rows, raw, first, documents, remarks)


def rows_and_documents(raw: dict[str, Any], scheme: str, model: str) -> tuple[list[Row], list[DocumentScore]]:
    """The numbers in lm-eval's results, and the scores of documents they are means of."""
    from hf_posenc.eval.ruler import ruler_tasks
    from hf_posenc.eval.ruler_results import ruler_documents, ruler_rows

    ruler = ruler_tasks(raw["results"])
    documents = [score for score in document_scores(raw) if score.task not in ruler]
    rows = [row for row in rows_of(raw, scheme=scheme, model=model, documents=documents) if row.task not in ruler]
    of_ruler = ruler_documents(raw["samples"], ruler)
    return [*rows, *ruler_rows(of_ruler, scheme, model)], [*documents, *of_ruler]


def fit_length(lm: Any, longest: int, *, given: bool) -> None:
    """Make room for requests of ``longest`` tokens.

    Raises:
        BeyondTable: the unpatched model has a table of fewer positions.
        RequestTooLong: somebody else's model object has less room; it would cut what is longer without a word.
        NotMeasurable: a text of that length takes more memory than there is.
    """
    from hf_posenc.core.memory import check_text_memory
    from hf_posenc.errors import RequestTooLong
    from hf_posenc.eval.lm.native_length import check_reach

    if hasattr(lm, "rows_at_once"):
        check_reach(lm, longest)
        check_text_memory(lm.model, longest, lm.rows_at_once(longest))
        if lm.max_length < longest or not given:
            lm.max_length = longest
    elif getattr(lm, "max_length", longest) < longest:
        raise RequestTooLong(
            f"This {type(lm).__name__} cuts requests to its max_length of {lm.max_length} tokens, and {longest} are "
            f"asked for. Make it with max_length={longest}, or pass its model."
        )


def default_lengths(lm: Any) -> list[int]:
    """The trained length, its doublings and the model's target; its own length where nothing is patched."""
    report = getattr(lm, "report", {})
    return doubling_lengths(report.get("trained_length") or lm.max_length, report.get("target_length") or lm.max_length)
