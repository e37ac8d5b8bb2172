"""One call from a model to rows of numbers, through lm-eval."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hf_posenc.errors import MissingExtra, WrongKind, shown
from hf_posenc.eval.lm.register import register_models
from hf_posenc.eval.results.rows import Row, rows_of, write_json
from hf_posenc.eval.task_folder import TASKS

CAUSAL_TASKS = ("posenc_ppl", "posenc_passkey")
MASKED_TASKS = ("posenc_mlm", "posenc_passkey")


@dataclass(frozen=True)
class Evaluation:
    """Tidy rows, and lm-eval's own results they were read from.

    Attributes:
        rows: one a number; the same in every process of a launch.
        raw: lm-eval's results; empty in all processes but the first.
        first: whether this is the process that reports.
    """

    rows: list[Row]
    raw: dict[str, Any]
    first: bool = True

    def save(self, path: Path) -> None:
        """Write both as one JSON file; a crash leaves the old file or the new one, never half of one.

        Of several processes the first writes.
        """
        if not self.first:
            return
        write_json(path, {"rows": [row.to_dict() for row in self.rows], "lm_eval": self.raw})


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
    text: str | Path | None = None,
    seed: int = 0,
    scheme: str | None = None,
    label: str | None = None,
    limit: int | None = None,
    include_path: str | Path | None = None,
    trust_tasks: bool = False,
    log_samples: bool = False,
    quiet: bool = True,
    tick: Callable[[], None] | None = None,
    options: Mapping[str, Any] | None = None,
    **model_args: Any,
) -> Evaluation:
    """Measure a model at every length asked for.

    Args:
        model: a live model, patched or not; a name or path; or an lm-eval model object.
        tokenizer: of a live model; by default loaded beside a named one.
        tasks: lm-eval task names; by default perplexity and passkeys, for masked models masked tokens and passkeys.
        lengths: in tokens; by default the trained length, doubled up to the model's target.
        samples: windows of text.
        scored: tokens scored at the end of each window.
        keys: passkeys, each hidden at every depth.
        depths: shares of the filler before the key.
        longest: tokens kept free before every target; set it alike in runs over other lengths that shall be compared.
        text: a text file; by default held-out modules of the standard library.
        seed: of keys and masks.
        scheme: put on the model first, with ``factor``, ``target_length`` and its options from ``model_args``.
        label: what rows call the scheme; by default its name, or ``"unpatched"``.
        limit: samples a length, for a quick look.
        include_path: a folder of further task files; they are code.
        trust_tasks: whether task files from outside the installed packages may run.
        log_samples: keep every request and answer in ``raw``.
        quiet: hide lm-eval's progress bars.
        tick: called after each scored request.
        options: further options of tasks, such as ``stride``, ``docs`` or ``alphabet``; see
            `hf_posenc.eval.tasks.sweep`.
        **model_args: anything else `PosEncLM` takes.

    Of several processes (see `hf_posenc.eval.lm.launch`) each scores its share of the documents of a model given by
    name, and all return the same rows.
    """
    from hf_posenc.core.memory import check_text_memory
    from hf_posenc.eval.catalogue import check_known, check_trusted
    from hf_posenc.eval.lm.launch import from_first
    from hf_posenc.eval.task_files import check_task_files
    from hf_posenc.eval.validate import check_measure, check_options, check_tasks

    require_lm_eval()
    asked = check_tasks(tasks, include_path)
    wanted, measure = check_measure(
        lengths=lengths, samples=samples, scored=scored, keys=keys, depths=depths, seed=seed, limit=limit, text=text,
        longest=longest,
    )  # fmt: skip
    options = check_options(options)
    check_trusted(asked, include_path, trust=trust_tasks)
    check_task_files(asked, include_path)
    if not trust_tasks:  # a trusted file is a task by its path
        check_known(asked, include_path)
    with suppress_output(quiet):
        lm = language_model(model, tokenizer, scheme=scheme, tick=tick, **model_args)
    lengths = sorted(wanted or default_lengths(lm))
    if hasattr(lm, "rows_at_once"):  # else somebody else's model object
        check_text_memory(lm.model, lengths[-1], lm.rows_at_once(lengths[-1]))
    if lm.max_length < lengths[-1] or "max_length" not in model_args:
        lm.max_length = lengths[-1]
    metadata = {
        **measure, "lengths": lengths, "longest": longest, "text": None if text is None else str(text),
        "tokenizer": lm.tokenizer, **options,
    }  # fmt: skip
    limit = metadata.pop("limit")
    chosen = asked or list(MASKED_TASKS if type(lm).__name__ == "PosEncMLM" else CAUSAL_TASKS)
    raw = run_tasks(
        lm, chosen, metadata, include_path, extra=options, limit=limit, log_samples=log_samples, quiet=quiet
    )
    first = lm.rank == 0
    rows = rows_of(raw, scheme=label or lm.scheme_name, model=model_name(lm)) if first else []
    return Evaluation(from_first(lm, rows), raw, first)


def language_model(model: Any, tokenizer: Any, **model_args: Any) -> Any:
    """The lm-eval model object of a live model, a name or a path; one that is one already is passed through."""
    require_lm_eval()
    import torch
    from lm_eval.api.model import LM

    from hf_posenc.checkpoints.checkpoint import Checkpoint
    from hf_posenc.core.files.hf_errors import explained_errors
    from hf_posenc.core.files.paths import checked_name
    from hf_posenc.eval.lm.models import PosEncLM, PosEncMLM
    from hf_posenc.eval.lm.native_length import check_device
    from hf_posenc.eval.validate import check_batch, check_tokenizer
    from hf_posenc.patching.preconditions.weights import check_finite

    check_tokenizer(tokenizer)
    check_batch(model_args.get("batch_size", 1))
    if isinstance(model, LM):
        return model
    if isinstance(model, (str, Path)):
        model = checked_name(model)
        cls = PosEncMLM if is_masked(Checkpoint.open(model, **model_args)) else PosEncLM
    elif isinstance(model, torch.nn.Module):
        cls = PosEncMLM if is_masked(model) else PosEncLM
    else:
        raise WrongKind(f"A model to measure is a live one, a folder or a hub name, got {shown(model)}. Pass one.")
    if model_args.get("device") is not None:
        check_device(model_args["device"])
    if isinstance(tokenizer, (str, Path)):
        tokenizer = checked_name(tokenizer, "A tokenizer")
    with explained_errors(tokenizer) if isinstance(tokenizer, str) else nullcontext():
        lm = cls(model, tokenizer=tokenizer, **model_args)
    check_finite(lm.model)
    return lm


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
    own tasks, more than ten thousand, are only scanned for when one of them is asked for.
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


def is_masked(model: Any) -> bool:
    """Whether a model's own class, or a checkpoint's, is a masked language model."""
    from hf_posenc.checkpoints.checkpoint import Checkpoint
    from hf_posenc.eval.lm.log_probs import unwrapped

    if isinstance(model, Checkpoint):
        classes = model.architectures
    else:
        classes = [cls.__name__ for cls in type(unwrapped(model)).__mro__]
    return any(name.endswith("ForMaskedLM") for name in classes)


def model_name(lm: Any) -> str:
    """The name or path the model came from, else its class."""
    from hf_posenc.eval.lm.log_probs import unwrapped

    host = unwrapped(lm.model)
    return getattr(host.config, "_name_or_path", "") or type(host).__name__


def require_lm_eval() -> None:
    """Say which extra is missing, rather than which module."""
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise MissingExtra("Evaluation needs lm-eval, which is not installed. pip install 'hf-posenc[eval]'") from error
