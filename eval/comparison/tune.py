"""Choose the options of schemes on a development text, which shares no document with the measured one.

    for each scheme and length: the candidate of its grid with the lowest loss on the development text

Candidates are cells like all others: stored as soon as they are measured, and found again when the command is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from hf_posenc.core.progress import ProgressCallback
from hf_posenc.errors import BadComparison, PosEncError
from hf_posenc.eval.comparison.cell import MeasurementRequest
from hf_posenc.eval.comparison.fitting import Fitting
from hf_posenc.eval.comparison.grid import candidates
from hf_posenc.eval.comparison.measure import measure_cells
from hf_posenc.eval.evaluation import CAUSAL_TASKS, MASKED_TASKS
from hf_posenc.eval.lm.model_kinds import is_masked
from hf_posenc.eval.results.record import Record
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.patching.set_aside import scheme_set_aside
from hf_posenc.schemes.entry import Entry

METRIC = "nll"
TUNING = 0.5
"""Share of the progress that choosing options has: a guess, as its cells are many, and of one cheap task."""
LONG_LINE = 40  # characters
SHARED = 0.1
"""Largest share of the long lines of either text that both may have: books of one publisher share their licence."""


@dataclass(frozen=True)
class TunedOptions:
    """Options chosen for entries, each for the tokens that it has to reach.

    Attributes:
        fitting: how entries are put on the model.
        chosen: label and reach to the chosen options.
        scores: label and reach to the losses on the development text of all candidates, by their options.
    """

    fitting: Fitting
    chosen: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    scores: dict[tuple[str, int], list[tuple[dict[str, Any], float]]] = field(default_factory=dict)

    def fit(self, entry: Entry, reach: int) -> Entry:
        """The entry with its chosen options, as `Fitting.fit` returns it."""
        options = entry.options | self.chosen.get((entry.label, reach), {})
        return self.fitting.fit(replace(entry, options=options), reach)

    def to_dict(self) -> list[dict[str, Any]]:
        """What was tried and chosen, for ``results.json``."""
        return [
            {
                "label": label, "length": reach, "chosen": self.chosen[label, reach],
                "tried": [{"options": options, METRIC: loss} for options, loss in tried],
            }
            for (label, reach), tried in self.scores.items()
        ]  # fmt: skip


def choose_options(
    lm: Any,
    request: MeasurementRequest,
    fitting: Fitting,
    entries: Sequence[Entry],
    lengths: Sequence[int],
    passed_on: dict[str, Any],
    store: Store,
    progress: ProgressCallback,
) -> TunedOptions:
    """Measure the candidates of every entry on the development text and choose among them.

    Args:
        lm: lm-eval model object.
        request: settings of the cells, with the digest of the development text, and `Fitting.fit`.
        fitting: how entries are put on the model.
        entries: the schemes, with the options that their user fixed.
        lengths: to choose options for; all of them together where they have one factor.
        passed_on: arguments of `hf_posenc.eval.evaluate`, with the development text.
        store: of finished cells.
        progress: called with the completed fraction and a description of the current step.
    """
    found, task = TunedOptions(fitting), (MASKED_TASKS if is_masked(lm.model) else CAUSAL_TASKS)[0]
    groups = {length: [length] for length in lengths} if request.factor_per_length else {request.longest: lengths}
    wanted = [
        (e, reach, option) for e in entries for reach in groups for option in option_candidates(fitting, e, reach)
    ]
    with scheme_set_aside(lm.model):
        cells = [[request.cell(option, task, [length]) for length in groups[reach]] for _, reach, option in wanted]
    records = measure_cells(lm, [cell for some in cells for cell in some], store, request, passed_on, progress)
    by_key = {record.key: record for record in records}
    for (entry, reach, option), some in zip(wanted, cells, strict=True):
        losses = [loss for cell in some for loss in losses_of(by_key[cell.key])]
        if len(losses) < len(some):
            continue  # refused, such as a group too small for the length
        options = {name: value for name, value in option.options.items() if name not in entry.options}
        found.scores.setdefault((entry.label, reach), []).append((options, fmean(losses)))
    for slot, scores in found.scores.items():
        found.chosen[slot] = min(scores, key=lambda scored: scored[1])[0]
    return found


def option_candidates(fitting: Fitting, entry: Entry, reach: int) -> list[Entry]:
    """The candidates of an entry; the entry alone where it is refused or has nothing to choose."""
    try:
        lengths = fitting.lengths(entry, reach) if entry.scheme is not None else None
    except PosEncError:
        return [entry]
    return [] if lengths is None else candidates(entry, lengths.factor, lengths.trained)


def losses_of(record: Record) -> list[float]:
    """The loss of a cell at its length; none where it was refused or failed."""
    return [row["value"] for row in record.rows if row["metric"] == METRIC and row["depth"] is None]


def check_apart(measured: MeasuredText, development: MeasuredText, option: str = "--dev-text") -> None:
    """Refuse a development text that shares documents or passages with the measured one.

    Args:
        measured: text to judge by.
        development: text to choose options on.
        option: of the command line, in which another text would be passed.

    Raises:
        BadComparison: a document is in both, or more than `SHARED` of the longer lines of one of them.
    """
    if what := shared_by(measured, development):
        raise BadComparison(
            f"The development text shares {what} with the measured text. Options would be measured on what they were "
            f"chosen for; pass another text with {option}."
        )


def shared_by(one: MeasuredText, other: MeasuredText) -> str:
    """What two texts have in common, in words; empty where they are apart.

    Lines are counted against the shorter text: an excerpt is a small part of the book, and all of it is the book's.
    """
    documents, lines = passages(one)
    other_documents, other_lines = passages(other)
    share = len(lines & other_lines) / max(min(len(lines), len(other_lines)), 1)
    if documents & other_documents:
        return "a document"
    return f"{100 * share:.0f} % of the lines of the shorter" if share > SHARED else ""


def passages(text: MeasuredText) -> tuple[set[str], set[str]]:
    """The documents of a text that are not empty, and its lines that are long enough to be nobody else's."""
    contents = [str(document.content) for document in text.documents]
    lines = {line.strip() for content in contents for line in content.splitlines()}
    return {content for content in contents if content.strip()}, {line for line in lines if len(line) >= LONG_LINE}
