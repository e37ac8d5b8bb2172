"""Make a leaderboard: compare the schemes on each model, time them in pairs, rank them, and write the results.

models × schemes × tasks × lengths → `hf_posenc.eval.compare` → cells.sqlite ─┐
                                     `hf_posenc.insight.bench` → costs ───────┴→ page.html, JSON, CSV, LaTeX
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from hf_posenc.core.files.slug import slug
from hf_posenc.core.plotting.figures import require_matplotlib
from hf_posenc.core.progress import ProgressCallback
from hf_posenc.errors import BadComparison
from hf_posenc.eval.catalogue import FILE_TASKS, sweeps, without_groups
from hf_posenc.eval.comparison.identity import digest_of, to_json, versions
from hf_posenc.eval.comparison.models import models_of
from hf_posenc.eval.comparison.progress import part_of
from hf_posenc.eval.comparison.run import folder_of_results
from hf_posenc.eval.report.phrases import model_title
from hf_posenc.eval.texts.measured_text import check_applies, measured_text
from hf_posenc.insight.leaderboard.board import Leaderboard
from hf_posenc.insight.leaderboard.commands import Settings, text_words
from hf_posenc.insight.leaderboard.exports import write_exports
from hf_posenc.insight.leaderboard.machine import machine
from hf_posenc.insight.leaderboard.one_model import LeaderboardSettings, of_model, with_baseline
from hf_posenc.schemes.entry import Given, entries_of
from hf_posenc.texts import TextNames, TextSource

DEPTHS = (0.25,)
"""Depths of passkeys: neither at the beginning, which sinks keep, nor at the end, which every scheme sees."""


def leaderboard(
    models: Any,
    *,
    out: str | Path,
    schemes: str | Sequence[Given] | None = None,
    lengths: Sequence[int] | None = None,
    tasks: Sequence[str] | None = None,
    samples: int = 16,
    scored: int = 64,
    keys: int = 24,
    depths: Sequence[float] = DEPTHS,
    text: TextNames | TextSource | None = None,
    text_field: str = "text",
    document_separator: str | None = None,
    seed: int = 0,
    factor_per_length: bool = False,
    rounds: int = 7,
    threads: int = 1,
    command: str | None = None,
    progress: ProgressCallback | None = None,
    **model_args: Any,
) -> Leaderboard:
    """Rank schemes on models by effective context length, loss, retrieval and cost, and write the results to a folder.

    The scores are cells of `hf_posenc.eval.compare`, in ``cells/MODEL/cells.sqlite`` of that folder: after an
    interruption the same call resumes. By default every scheme is patched once, for the longest length, and measured
    at all lengths with that factor, as it would be deployed.

    Args:
        models: names of models, or `hf_posenc.eval.MeasuredModel` objects; or a single one.
        out: folder of ``page.html``, ``leaderboard.json``, ``.csv``, ``.tex`` and ``.md``, and pictures.
        schemes: as `hf_posenc.eval.compare` takes them; by default all that can be used without training on the model.
        lengths: tokens; by default one, two and four times the trained length of each model.
        tasks: names of our tasks that are measured length by length; by default loss and passkey retrieval.
        samples, scored, seed, text, text_field, document_separator: as in `hf_posenc.eval.evaluate`.
        keys, depths: likewise; with 23 keys and more, a model that finds all is surely above RULER's 85.6 %.
        factor_per_length: patch each scheme for each length separately.
        rounds: pairs of time measurements.
        threads: of torch, while time is measured.
        command: printed to make the leaderboard again.
        progress: called with the completed fraction and a description of the current step.
        **model_args: further arguments of `PosEncLM`.

    Raises:
        PosEncError: an argument is invalid, or the folder cannot be used.
    """
    require_matplotlib()
    names = without_groups(tasks or ())
    check_swept(names)
    folder = folder_of_results(out)
    named = models_of(models, None, None, {"batch_size": 1, **model_args})
    entries = None if schemes is None else with_baseline(entries_of(schemes))
    source = source_of(text, text_field, document_separator)
    read = measured_text(source)
    settings = Settings(samples, scored, keys, tuple(depths), seed, text_words(source), factor_per_length)
    own_text = None if source is None else read
    request = LeaderboardSettings(entries, tuple(lengths or ()), tuple(names), settings, own_text, rounds, threads)
    report_progress = progress or (lambda done, doing: None)
    parts = []
    for number, model in enumerate(named):
        share = part_of(report_progress, number / len(named), 1 / len(named), f"{model.shown_name}: ")
        parts.append(of_model(model, request, folder / "cells" / slug(model_title(model.shown_name)), share))
    about = {
        "date": date.today().isoformat(), "command": command, "machine": machine(threads), "versions": versions(),
        "settings": to_json(asdict(settings)),
        "text": digest_of("\n".join(str(document.content) for document in read.documents)),
        "models": [about for about, _ in parts],
    }  # fmt: skip
    board = Leaderboard(about, [line for _, lines in parts for line in lines])
    report_progress(1.0, "writing")
    write_exports(folder, board)
    return board


def check_swept(tasks: Sequence[str]) -> None:
    """Refuse tasks that are not measured length by length, or that read files of records.

    Raises:
        BadComparison: there is one.
    """
    if found := [task for task in tasks if not sweeps(task) or task in FILE_TASKS]:
        raise BadComparison(
            f"A leaderboard has tasks that are measured length by length and read no records, not {', '.join(found)}. "
            "Use hf-posenc compare, or choose others, such as posenc_ppl and posenc_niah_single."
        )


def source_of(text: TextNames | TextSource | None, field: str, separator: str | None) -> TextSource | None:
    """The text as a source of documents; None for the default text.

    Raises:
        WrongKind: it is no text, or a field or separator is given that applies to nothing.
    """
    check_applies(text, field, separator)
    if text is None or isinstance(text, TextSource):
        return text
    return TextSource.of_names(text, field=field, separator=separator)
