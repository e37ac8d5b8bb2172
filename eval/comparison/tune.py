"""Choose the options of schemes on a development text, which shares no document with the measured text.

    for each scheme: the candidate with the lowest mean loss on the development text, over all lengths

Each candidate is measured in cells of the store, so a repeated command does not measure it again. The values to try
follow from the trained length T and the factor s = longest length / T. Every scheme is also tried with the options that
it has without tuning, so tuning is never worse on the development text.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, log
from statistics import fmean
from typing import Any

from hf_posenc.core.progress import ProgressCallback
from hf_posenc.core.source_digest import digest_of
from hf_posenc.errors import BadComparison, PosEncError
from hf_posenc.eval.comparison.cell import Measuring
from hf_posenc.eval.comparison.measure import measure_cells
from hf_posenc.eval.evaluation import CAUSAL_TASKS, MASKED_TASKS
from hf_posenc.eval.lm.measurable import is_masked
from hf_posenc.eval.settings import CompareSettings
from hf_posenc.eval.texts.measured_text import TRAINING, MeasuredText, measured_text, module_text
from hf_posenc.patching.patch import scheme_set_aside
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.entry import Entry
from hf_posenc.schemes.remap.dpe import BANDS
from hf_posenc.schemes.spec import defaults_of, plan
from hf_posenc.texts import Document

METRIC = "nll"
TUNING = 0.5
"""Share of the progress bar for choosing options: a guess, because its cells are many but of one cheap task."""
LONG_LINE = 40  # characters
SHARED = 0.1
"""Largest share of long lines that two texts may have in common: books of one publisher share their licence."""


def parts_of(trained: int, *shares: float) -> list[int]:
    """Shares of the trained length, whole tokens."""
    return [max(1, int(share * trained)) for share in shares]


def times(factor: float, *multiples: float) -> list[float]:
    """Multiples of the factor, at least 1."""
    return [max(1.0, multiple * factor) for multiple in multiples]


def grouped(factor: float, *multiples: float) -> tuple[int, ...]:
    """Group sizes of DPE's `BANDS` frequency bands, fastest first; equal runs of bands get one multiple each."""
    return tuple(ceil(multiples[band * len(multiples) // BANDS] * factor) for band in range(BANDS))


def one_band_apart(factor: float, *multiples: float) -> list[tuple[int, ...]]:
    """Group sizes of twice the factor in all bands but one; that band tries each of the multiples."""
    choices = product(range(BANDS), multiples)
    return [grouped(factor, *(multiple if b == band else 2 for b in range(BANDS))) for band, multiple in choices]


def small_grid(s: float, trained: int) -> dict[str, list[Any]]:
    """Values to try of each option."""
    return {
        "window": parts_of(trained, 1 / 8, 1 / 4, 1 / 2, 3 / 4),  # of neighbours at their true distance
        "group": [ceil(multiple * s) for multiple in (1.5, 2, 4)],
        "groups": [grouped(s, *both) for both in ((1.5,), (2,), (4,), (1.5, 4), (4, 1.5))],
        "k": times(s, 1, 2, 4),
        "chunk": parts_of(trained, 1 / 2, 3 / 4, 1),
        "local": parts_of(trained, 1 / 16, 1 / 8, 1 / 4),
        "shift": parts_of(trained, 1 / 4, 1 / 3, 1 / 2),
        "n_local": parts_of(trained, 1 / 2, 3 / 4, 1),
        "recent": parts_of(trained, 1 / 2, 3 / 4, 1),
        "size": parts_of(trained, 1 / 4, 1 / 2, 3 / 4, 1),
        "multiplier": times(s, 1 / 4, 1 / 2, 1, 2),
    }


def fine_grid(s: float, trained: int) -> dict[str, list[Any]]:
    """More options with more values, from which the candidates of a budget are drawn."""
    return small_grid(s, trained) | {
        "window": parts_of(trained, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8),
        "group": [ceil(multiple * s) for multiple in (1.25, 1.5, 2, 4, 8)],
        "groups": [grouped(s, 2), *one_band_apart(s, 1 / 4, 1 / 2, 1, 4)],  # as DPE's authors search
        "chunk": parts_of(trained, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1),
        "local": parts_of(trained, 1 / 16, 1 / 8, 1 / 4, 3 / 8),
        "size": parts_of(trained, 1 / 2, 3 / 4, 7 / 8, 1),
        "k": times(s, 1, 2, 4, 16),
        "sinks": [1, 4, 16],
        "n_global": [1, 4, 10, 32],
        "beta_fast": [4.0, 8.0, 16.0, 32.0],
        "beta_slow": [0.5, 1.0, 2.0],
        "attention_factor": [round(1 + c * log(s), 4) for c in (0.0, 0.05, 0.1, 0.15)],
        "low_freq_factor": [0.5, 1.0, 2.0],
        "high_freq_factor": [4.0, 8.0],
    }


STRETCHES = (1, 1.25, 1.5, 2)
"""Multiples of the factor to try as ``factor`` of schemes that stretch a rotation by it, such as `pi` and `yarn`."""
PARTIAL = (1 / 6, 1 / 4, 1 / 2, 1)
"""The same in a composition with a remap, which bounds distances itself: a smaller factor is enough."""


def choose_options(
    measuring: Measuring, entries: Sequence[Entry], progress: ProgressCallback
) -> tuple[Mapping[str, dict[str, Any]], list[dict[str, Any]]]:
    """Measure the candidates of every entry on the development text and choose the best of each.

    Returns:
        The chosen options by label, and all candidates with their losses for ``results.json``.
    """
    settings = measuring.settings
    task = MASKED_TASKS[0] if is_masked(measuring.lm.model) else CAUSAL_TASKS[0]
    trials = [(entry, trial) for entry in entries for trial in candidates(measuring, entry, settings.budget)]
    with scheme_set_aside(measuring.lm.model):
        cells = [[measuring.cell(trial, task, [length]) for length in settings.lengths] for _, trial in trials]
    records = measure_cells(measuring, [cell for trial_cells in cells for cell in trial_cells], progress)
    rows_of = {record.key: record.rows for record in records}  # empty for a cell that was refused or failed
    tried: dict[str, list[dict[str, Any]]] = {}
    for (entry, trial), trial_cells in zip(trials, cells, strict=True):
        rows = [row for cell in trial_cells for row in rows_of[cell.key]]
        losses = [row.value for row in rows if row.metric == METRIC and row.depth is None]
        if len(losses) < len(trial_cells):
            continue  # refused, such as a group too small for the length
        options = {name: value for name, value in trial.options.items() if name not in entry.options}
        tried.setdefault(entry.label, []).append({"options": options, METRIC: fmean(losses)})
    chosen = {label: min(scored, key=lambda one: one[METRIC])["options"] for label, scored in tried.items()}
    described = [
        {"label": label, "length": measuring.longest, "chosen": chosen[label], "tried": scored}
        for label, scored in tried.items()
    ]
    return chosen, described


def candidates(measuring: Measuring, entry: Entry, budget: int | None = None) -> list[Entry]:
    """The entry itself, and copies with combinations of the options that the user left open.

    Without a budget, all combinations of the small grid. With one, ``budget`` candidates in all, drawn at random from
    the finer grid. No candidates for the unpatched model.
    """
    if entry.scheme is None:
        return []
    try:
        lengths = measuring.lengths(entry)
        grid = grid_of(entry, lengths.factor, lengths.trained, fine=budget is not None)
    except PosEncError:  # patching gives the reason
        return [entry]
    combinations = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []
    if budget is not None:
        draw = random.Random(f"{entry.label}-{measuring.settings.seed}")
        combinations = draw.sample(combinations, min(budget - 1, len(combinations)))
    return [entry, *(replace(entry, options={**entry.options, **options}) for options in combinations)]


def grid_of(entry: Entry, factor: float, trained: int, *, fine: bool = False) -> dict[str, list[Any]]:
    """The values to try of each option that the user left open."""
    parts = plan(entry.scheme or "", entry.own_options).parts
    values = fine_grid(factor, trained) if fine else small_grid(factor, trained)
    grid = {
        name: values[name]
        for cls, user_options in parts
        for name in defaults_of(cls)
        if name in values and name not in user_options
    }
    # Only schemes that stretch a rotation by the factor of the patch, not by the length of the text so far.
    if not entry.lengths and any(cls.stretches and cls.row_rotation is Scheme.row_rotation for cls, _ in parts):
        remapped = any(cls.regions is not Scheme.regions for cls, _ in parts)
        grid["factor"] = times(factor, *(PARTIAL if remapped else STRETCHES))
    return {name: list(dict.fromkeys(tried)) for name, tried in grid.items()}


def development_text(settings: CompareSettings, measured: MeasuredText) -> MeasuredText:
    """Text to choose options on: the user's; if the default text is measured, other modules of the library."""
    if settings.dev_text is not None:
        development = measured_text(settings.dev_text, field=settings.text_field)
        check_apart(measured, development)
        return development
    if settings.text is not None:
        raise BadComparison("Options are chosen on a development text, and none is given. Pass --dev-text (dev_text=).")
    documents = tuple(Document(name, module_text(name)) for name in TRAINING[::8])
    digest = digest_of("\0".join(document.content for document in documents))
    return MeasuredText(documents, "other modules of the standard library", digest)


def check_apart(measured: MeasuredText, development: MeasuredText) -> None:
    """Refuse a development text that shares documents or passages with the measured one.

    The share of common lines is relative to the shorter text, so an excerpt of a book is recognized as part of it.
    """
    documents, lines = passages(measured)
    other_documents, other_lines = passages(development)
    share = len(lines & other_lines) / max(min(len(lines), len(other_lines)), 1)
    if documents & other_documents or share > SHARED:
        what = "a document" if documents & other_documents else f"{100 * share:.0f} % of the lines of the shorter"
        raise BadComparison(
            f"The development text shares {what} with the measured text. Options would be measured on what they were "
            "chosen for; pass another text with --dev-text."
        )


def passages(text: MeasuredText) -> tuple[set[str], set[str]]:
    """The documents of a text that are not empty, and its lines that are long enough to be unique."""
    contents = [document.content for document in text.documents]
    lines = {line.strip() for content in contents for line in content.splitlines()}
    return {content for content in contents if content.strip()}, {line for line in lines if len(line) >= LONG_LINE}
