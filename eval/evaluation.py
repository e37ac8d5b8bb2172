"""Evaluate a model through lm-eval in one call: model and tasks in, rows of numbers out."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.lengths import doubling_lengths
from hf_posenc.core.memory import check_text_memory
from hf_posenc.core.progress import OpenProgressCallback
from hf_posenc.core.torch_state import evaluation_mode_if_live
from hf_posenc.errors import RequestTooLong
from hf_posenc.eval.catalogue import check_settings_read, check_tasks
from hf_posenc.eval.lm.launch import from_first
from hf_posenc.eval.lm.load import language_model, model_name, require_lm_eval, scheme_name
from hf_posenc.eval.lm.measurable import check_reach, trained_length_of_lm
from hf_posenc.eval.results.rows import DocumentScore, Row, document_scores, few_documents, rows_of
from hf_posenc.eval.settings import EvaluateSettings, Measurement, split
from hf_posenc.eval.task_run import check_options, run_tasks, suppress_output
from hf_posenc.eval.texts.held_out import HeldOutText, with_held_out
from hf_posenc.eval.texts.measured_text import measured_text
from hf_posenc.patching.patch import scheme_set_aside
from hf_posenc.patching.state import is_patched

CAUSAL_TASKS = ("posenc_ppl", "posenc_passkey")
MASKED_TASKS = ("posenc_mlm", "posenc_passkey")
HELD_OUT_TASKS = ("posenc_held_out",)
"""Default tasks of a decoder on the held-out text of a fine-tuning run."""


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation: tidy rows, and the lm-eval results that they are made from.

    Attributes:
        rows: one row per number; the same in every process.
        documents: scores of single documents, whose means are rows; the same in every process.
        raw: lm-eval's results; empty in all processes except the first.
        remarks: caveats about these numbers; the same in every process.
        first: whether this is the process that reports.
    """

    rows: list[Row]
    raw: dict[str, Any]
    first: bool = True
    documents: list[DocumentScore] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write rows, documents, remarks and lm-eval's results to one JSON file, atomically.

        With several processes, only the first writes.
        """
        if not self.first:
            return
        rows, documents = (list(map(asdict, items)) for items in (self.rows, self.documents))
        content = {"rows": rows, "lm_eval": self.raw, "documents": documents, "remarks": self.remarks}
        write_json(path, json.loads(json.dumps(content, default=str)))  # functions become text


@explained_imports()
def evaluate(
    model: Any,
    tokenizer: Any = None,
    *,
    scheme: str | None = None,
    label: str | None = None,
    on_request: OpenProgressCallback | None = None,
    settings: EvaluateSettings | None = None,
    **arguments: Any,
) -> Evaluation:
    """Evaluate a model at several context lengths.

    Args:
        model: a loaded model, patched or not; the name of a model, a PEFT adapter or a bundled model
            (``starter:llama``); or an lm-eval model object, such as an `HFLM`.
        tokenizer: tokenizer of a loaded model; by default, a named model's own tokenizer is loaded.
        scheme: scheme to patch in first, with ``factor``, ``target_length`` and its options from ``arguments``; a live
            model is unpatched again when this returns.
        label: name of the scheme in rows; by default its own, or ``"unpatched"``.
        on_request: called after each scored request, with the finished share of such requests and a description.
        settings: what is measured.
        **arguments: fields of `hf_posenc.eval.settings.EvaluateSettings`, such as ``lengths``, ``tasks`` and
            ``samples``. They replace those of ``settings``. All other arguments are passed to `PosEncLM`.

    Raises:
        MissingPackage: lm-eval is not installed.
        TaskOptionOutOfRange: a length, a number or an option of a task is out of range.
        UnknownOption: no task takes an option, or the model object does not take an argument.
        BadComparison: there is no such task, or none of the tasks reads the text.
        UntrustedTask: a task file lies outside the installed packages, and ``trust_tasks`` is not set.
        NotMeasurable: the model cannot be scored on these tasks, or a task does not accept few-shot or chat prompts.
        RequestTooLong: a request is longer than the context window.
        PosEncError: the model cannot be loaded or patched, or the text cannot be read.

    With several processes (see `hf_posenc.eval.lm.launch`), each scores a share of the documents if the model is given
    by name. All of them return the same rows.
    """
    require_lm_eval()
    settings, model_args = split(EvaluateSettings, arguments, settings)
    settings = with_held_out(settings, (model, model_args.get("peft")))
    text = measured_text(settings.text, field=settings.text_field)
    check_tasks(settings.tasks, settings.include_path, trust=settings.trust_tasks)
    if settings.text is not None:
        check_settings_read(["text"], settings.tasks)
        settings = settings.model_copy(update={"text": text})
    unpatched = isinstance(model, nn.Module) and not is_patched(model)
    with evaluation_mode_if_live(model), scheme_set_aside(model) if unpatched else nullcontext():
        with suppress_output():
            lm = language_model(model, tokenizer, scheme=scheme, on_request=on_request, **model_args)
        lengths = settings.lengths or tuple(sorted(default_lengths(lm)))
        tasks = settings.tasks or tuple(default_tasks(lm, settings.text))
        settings = settings.model_copy(update={"lengths": lengths, "tasks": tasks})
        check_options(settings)
        fit_length(lm, lengths[-1], is_set="max_length" in model_args)
        own_tokenizer = None if isinstance(tokenizer, (str, Path)) else tokenizer
        evaluation = evaluation_of(lm, settings, label or scheme_name(lm), own_tokenizer)
    if not settings.log_samples:
        evaluation.raw.pop("samples", None)
    return evaluation


def default_tasks(lm: Any, text: Any) -> list[str]:
    """Default tasks of a model object on a text."""
    from hf_posenc.eval.lm.masked_lm import PosEncMLM  # needs lm-eval

    if isinstance(lm, PosEncMLM):
        return list(MASKED_TASKS)
    return list(HELD_OUT_TASKS if isinstance(text, HeldOutText) else CAUSAL_TASKS)


def evaluation_of(lm: Any, settings: Measurement, scheme: str, tokenizer: Any = None) -> Evaluation:
    """Run the tasks of complete settings on a model object, and turn the results into rows, equal in every process."""
    raw = run_tasks(lm, settings, lm.tokenizer if tokenizer is None else tokenizer)
    first = lm.rank == 0
    documents = document_scores(raw) if first else []
    rows = rows_of(raw, scheme=scheme, model=model_name(lm), documents=documents) if first else []
    rows, documents, remarks = from_first(lm, (rows, documents, list(dict.fromkeys(few_documents(rows)))))
    if isinstance(settings.text, HeldOutText):
        remarks.append(f"The text is what the fine-tuning run held out: {settings.text.label}.")
    return Evaluation(rows, raw, first, documents, remarks)


def fit_length(lm: Any, longest: int, *, is_set: bool = False) -> None:
    """Set the model object's ``max_length`` to ``longest`` tokens, unless the user has set a larger one."""
    if hasattr(lm, "rows_at_once"):
        check_reach(lm, longest)
        check_text_memory(lm.model, longest, lm.rows_at_once(longest))
        if lm.max_length < longest or not is_set:
            lm.max_length = longest
    elif getattr(lm, "max_length", longest) < longest:
        raise RequestTooLong(
            f"This {type(lm).__name__} cuts requests to its max_length of {lm.max_length} tokens, but {longest} are "
            f"needed. Create it with max_length={longest}, or pass its model."
        )


def default_lengths(lm: Any) -> list[int]:
    """The trained length, its doublings, and the target length of the scheme or of the model's own configuration."""
    if not hasattr(lm, "report"):  # not one of our model objects
        return [lm.max_length]
    reach = lm.report.get("target_length") or lm.max_length
    return doubling_lengths(min(trained_length_of_lm(lm), reach), reach)
