"""The leaderboard as one self-contained HTML page: tables, pictures, and filters in a few lines of plain JavaScript.

Without JavaScript everything is shown. The content security policy allows this one script by its digest, and nothing
from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from hf_posenc.core.plotting.svg import svg_of
from hf_posenc.eval.report.page import html_template, svg_markup
from hf_posenc.eval.report.phrases import model_title, task_title
from hf_posenc.insight.leaderboard.board import Leaderboard
from hf_posenc.insight.leaderboard.line import Line
from hf_posenc.insight.leaderboard.pareto import picture
from hf_posenc.insight.leaderboard.words import (
    RULES,
    caption,
    cells,
    columns,
    factor_sentence,
    heading,
    machine_sentence,
)

TEMPLATE, SCRIPT = Path(__file__).parent / "page.html", Path(__file__).parent / "filters.js"


def page_html(board: Leaderboard) -> str:
    """Render the page as HTML."""
    models = {model["name"]: model for model in board.about["models"]}
    script = SCRIPT.read_text(encoding="utf-8")
    return html_template(TEMPLATE).render(
        title=title(board),
        script=svg_markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        machine=machine_sentence(board.about),
        command=board.about["command"],
        rules=[factor_sentence(board.about), *RULES],
        choices=choices(board),
        sections=[section(models[name], task, lines) for (name, task), lines in board.tables().items()],
        models=board.about["models"],
    )


def title(board: Leaderboard) -> str:
    """Title of the page."""
    schemes = {line.scheme for line in board.lines if line.use != "unpatched"}
    names = ", ".join(model_title(model["name"]) for model in board.about["models"])
    return f"Leaderboard: {len(schemes)} positional schemes on {names}"


def choices(board: Leaderboard) -> list[dict[str, Any]]:
    """The filters: each with its name and the values one can choose, with what they are called."""
    return [
        {"name": "model", "values": {line.model: model_title(line.model) for line in board.lines}},
        {"name": "task", "values": {line.task: task_title(line.task) for line in board.lines}},
        {"name": "kind", "values": {line.kind: line.kind for line in board.lines}},
    ]


def section(model: dict[str, Any], task: str, lines: list[Line]) -> dict[str, Any]:
    """Table and picture of one task of one model."""
    drawn = picture(lines)
    return {
        "model": model["name"], "task": task, "title": heading(model, task), "caption": caption(lines),
        "picture": None if drawn is None else svg_markup(svg_of(*drawn)), "head": columns(model, lines),
        "lines": [
            {"kind": line.kind, "cells": cells(line, lines), "scores": line.scores} for line in lines
        ],
    }  # fmt: skip
