"""Reproduce a published finding: measure what is missing, judge its claims, write the result and its picture."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.plotting.figures import require_matplotlib
from hf_posenc.core.progress import OpenProgressCallback
from hf_posenc.errors import AlreadyPatched, CellMissing, UnknownFinding
from hf_posenc.eval.texts.measured_text import MeasuredText, TextToMeasure, measured_text
from hf_posenc.insight.findings.catalogue import finding_named
from hf_posenc.insight.findings.cells import FindingCell, file_of, load_cell, save_cell
from hf_posenc.insight.findings.finding import Finding, Job
from hf_posenc.insight.findings.identity import settings_of, shared_settings
from hf_posenc.insight.findings.picture import write_pictures
from hf_posenc.insight.findings.reproduction import CELLS, Reproduction
from hf_posenc.insight.findings.verdict import judge
from hf_posenc.insight.leaderboard.commands import text_words
from hf_posenc.texts import TextSource

FOLDER = {False: "results/findings", True: "results/findings-quick"}
"""Where results go by default, with the full budget and with the quick one."""


@explained_imports()
def reproduce(
    finding: str | Finding,
    *,
    out: str | Path | None = None,
    quick: bool = False,
    model: str | None = None,
    text: TextToMeasure = None,
    seeds: int | None = None,
    samples: int | None = None,
    progress: OpenProgressCallback = lambda done, doing: None,
) -> Reproduction:
    """Reproduce a published finding, and decide by paired intervals whether it shows here.

    Raw cells are kept in ``cells/`` in the folder of results, one file each: the same call again measures only what is
    missing, and derives the verdict from them. The folder also gets ``finding.json``, ``picture.png`` and
    ``picture.svg``.

    Args:
        finding: its name, ``"zero_shot_order"``, or a `Finding` of your own.
        out: folder of the results; by default ``results/findings/NAME``, or ``results/findings-quick/NAME``.
        quick: use a smaller budget, which every output says.
        model: name of a model instead of the finding's own, such as ``"starter:llama"``.
        text: to measure on, as `hf_posenc.eval.evaluate` takes it; by default held-out modules of the standard library.
        seeds: number of trainings of each variant from random weights, instead of the budget's; those that are stored
            are kept.
        samples: number of documents, instead of the budget's.
        progress: called with the completed fraction and a description of the current step.

    Raises:
        UnknownFinding: there is no finding of that name, or it takes no model, text, seeds or samples.
        AlreadyPatched: the model was saved with a scheme.
        OptionOutOfRange: fewer than two seeds or samples.
        PosEncError: a scheme is refused for the model.
    """
    chosen = finding if isinstance(finding, Finding) else finding_named(finding)
    require_matplotlib()
    check_taken(chosen, model, text)
    chosen = chosen.given(quick, seeds, samples)
    folder = Path(out) if out is not None else Path(FOLDER[quick]) / chosen.name
    own_text = measured_text(text) if chosen.reads_text else None
    named = model or chosen.model
    shared = shared_settings(chosen, named, own_text)
    cells = list(measured_cells(chosen, quick, named, own_text, shared, folder / CELLS, progress))
    result = Reproduction(
        chosen, quick, named, None if own_text is None else own_text.label, cells,
        judge(chosen.claims, chosen.metrics, cells), judge(chosen.needs, chosen.metrics, cells),
        [file_of(folder, cell.settings).name for cell in cells], shared,
        command(chosen, quick, model, text, seeds, samples),
    )  # fmt: skip
    result.save(folder)
    write_pictures(result, folder)
    return result


def check_taken(finding: Finding, model: str | None, text: Any) -> None:
    """Refuse what would have no effect on a finding.

    Raises:
        UnknownFinding: a model or a text is given to a finding that takes none.
        AlreadyPatched: the model was saved with a scheme, and would be measured under that as the unpatched one.
    """
    if model is not None and finding.model is None:
        raise UnknownFinding(f"{finding.name} trains its own models and takes none. Leave --model {model} out.")
    if text is not None and not finding.reads_text:
        raise UnknownFinding(f"{finding.name} makes its own texts and reads none. Leave --text out.")
    stored = None if model is None else Checkpoint.open(model).scheme
    if stored is not None:
        raise AlreadyPatched(
            f"{model} carries scheme {stored}, and {finding.name} compares schemes with the unpatched model. "
            "Name the model it was made from."
        )


def measured_cells(
    finding: Finding,
    quick: bool,
    model: str | None,
    text: MeasuredText | None,
    shared: dict[str, Any],
    folder: Path,
    progress: OpenProgressCallback,
) -> Iterator[FindingCell]:
    """Yield all cells; those without a file are measured first, and stored as soon as they are known."""
    slots, axis = finding.slots(quick), tuple(map(float, finding.points))
    for number, (variant, seed) in enumerate(slots):

        def report(share: float, doing: str, before: int = number, what: str = variant) -> None:
            progress((before + share) / len(slots), f"{what}: {doing}")

        options = finding.budget(quick).options
        job = Job(variant, finding.variants[variant], axis, axis, seed, options, model or "", text, report)
        wanted = {at: settings_of(finding, job, at, shared) for at in axis}
        job = replace(job, points=tuple(at for at in axis if not file_of(folder, wanted[at]).exists()))
        report(0.0, "measuring" if job.points else "kept")
        if job.points:
            measure(finding, job, wanted, folder)
        yield from (load_cell(file_of(folder, wanted[at])) for at in axis)


def measure(finding: Finding, job: Job, wanted: dict[float, dict[str, Any]], folder: Path) -> None:
    """Measure the missing cells of one variant with one seed, and store each."""
    before = time.monotonic(), time.process_time()
    for at, scores in finding.measure(job):
        now = time.monotonic(), time.process_time()
        save_cell(
            folder, FindingCell(job.variant, at, job.seed, scores, now[0] - before[0], now[1] - before[1], wanted[at])
        )
        before = now
    missing = [at for at in job.points if not file_of(folder, wanted[at]).exists()]
    if missing:
        raise CellMissing(f"{finding.name} did not score {job.variant} at {missing}. Yield every point of the job.")


def command(
    finding: Finding, quick: bool, model: str | None, text: TextToMeasure, seeds: int | None, samples: int | None
) -> str:
    """The command that makes a result again."""
    words = ["hf-posenc", "reproduce", finding.name, *(["--quick"] if quick else [])]
    given = {"--model": model, "--seeds": seeds, "--samples": samples}
    words += [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return shlex.join([*words, *words_of(text)])


def words_of(text: TextToMeasure) -> Sequence[str]:
    """A text as words of the command line, with how it is read where that is known."""
    if isinstance(text, MeasuredText):
        names = [text.label] if isinstance(text.label, str) else text.label or []
        return [word for name in names for word in ("--text", name)]
    return text_words(text if text is None or isinstance(text, TextSource) else TextSource.of_names(text))
