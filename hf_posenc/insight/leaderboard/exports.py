"""Write a leaderboard: page, JSON, CSV, LaTeX, Markdown and pictures, all of them or none."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from hf_posenc.core.files.slug import slug
from hf_posenc.eval.report.figures import DATES, rendered
from hf_posenc.eval.report.latex import escaped as latex_escaped
from hf_posenc.eval.report.phrases import model_title
from hf_posenc.eval.report.report import bullets, escaped, markdown_table
from hf_posenc.eval.report.result_files import write_result_files
from hf_posenc.eval.report.spreadsheet import escape_formula
from hf_posenc.insight.leaderboard.board import FILE, Leaderboard
from hf_posenc.insight.leaderboard.line import LengthScore, Line
from hf_posenc.insight.leaderboard.page import page_html
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

CSV_COLUMNS = (
    "model", "scheme", "kind", "use", "task", "metric", "length", "state", "value", "low", "high", "bootstrap_low",
    "bootstrap_high", "n", "effective_length", "effective_low", "effective_high", "rank_first", "rank_last", "rank_of",
    "prefill_time_ratio", "prefill_memory_ratio", "decode_time_ratio", "cache_bytes_per_token", "command", "reason",
)  # fmt: skip


def write_exports(folder: Path, board: Leaderboard) -> None:
    """Write all files of a leaderboard.

    Raises:
        StoreUnusable: the folder cannot be written; finished cells are kept.
    """
    texts: dict[str, str | bytes] = {
        FILE: json.dumps(board.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "leaderboard.csv": csv_text(board),
        "leaderboard.tex": latex_text(board),
        "leaderboard.md": markdown_text(board),
        "page.html": page_html(board),
    }
    write_result_files(folder, texts | picture_files(board))


def csv_text(board: Leaderboard) -> str:
    """Format as CSV: one line per cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for line in board.lines:
        for score in line.scores:
            writer.writerow(csv_row(line, score))
    return file.getvalue()


def csv_row(line: Line, score: LengthScore) -> list[Any]:
    """One cell under `CSV_COLUMNS`."""
    names = [escape_formula(name) for name in (line.model, line.scheme, line.kind, line.use, line.task, line.metric)]
    effective, rank, prefill, decode = line.effective, line.rank, line.cost("prefill"), line.cost("decode")
    found = (effective.length, effective.low, effective.high) if effective else (None, None, None)
    return [
        *names, score.length, score.state, score.value, score.low, score.high, score.bootstrap_low,
        score.bootstrap_high, score.n, *found, *((rank.first, rank.last, rank.of) if rank else (None, None, None)),
        prefill and prefill.time,
        prefill and prefill.memory, decode and decode.time, line.cache_per_token, escape_formula(score.command),
        escape_formula(score.reason),
    ]  # fmt: skip


def latex_text(board: Leaderboard) -> str:
    """Format as LaTeX: a table for each task of each model."""
    models = {model["name"]: model for model in board.about["models"]}
    head = "% Needs \\usepackage{booktabs}. In brackets: 95 % intervals, and quartiles of times.\n"
    tables = []
    for (name, task), lines in board.tables().items():
        heads = " & ".join(map(latex_escaped, columns(models[name], lines)))
        body = "\n".join(" & ".join(map(latex_cell, cells(line, lines))) + " \\\\" for line in lines)
        title = latex_escaped(f"{heading(models[name], task)}, {caption(lines)}.")
        tables.append(
            f"\\begin{{table}}\n\\centering\n\\caption{{{title}}}\n"
            f"\\begin{{tabular}}{{l{'r' * (len(columns(models[name], lines)) - 1)}}}\n\\toprule\n{heads} \\\\\n"
            f"\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
        )
    return "\n".join([head, *tables])


def latex_cell(text: str) -> str:
    """Escape a cell; dashes as LaTeX writes them."""
    return latex_escaped(text).replace("–", "--").replace("—", "---")


def markdown_text(board: Leaderboard, pictures: str = "") -> str:
    """Format as Markdown: how it was made, a table and a picture for each task of each model, what was left out.

    Args:
        board: the leaderboard.
        pictures: what is put in front of the names of the pictures, such as ``"folder/"``.
    """
    models = {model["name"]: model for model in board.about["models"]}
    parts = [escaped(machine_sentence(board.about))]
    if board.about["command"]:
        parts.append("```console\n$ " + board.about["command"].replace("\n", " ") + "\n```")
    parts.append(bullets([factor_sentence(board.about), *RULES]))
    for (name, task), lines in board.tables().items():
        parts.append(f"## {escaped(heading(models[name], task))}")
        parts.append(escaped(caption(lines)) + f", `{task}`")
        parts.append(markdown_table(columns(models[name], lines), [cells(line, lines) for line in lines]))
        if (drawn := picture(lines)) is not None:
            parts.append(f"![{escaped(drawn[1])}]({pictures}{picture_name(name, task)}.png)")
    for model in board.about["models"]:
        if model["remarks"]:
            parts.append(f"## Remarks on {escaped(model_title(model['name']))}")
            parts.append(bullets(model["remarks"]))
        if model["left_out"]:
            parts.append(f"## Left out on {escaped(model_title(model['name']))}")
            parts.append(bullets(sentences(model["left_out"])))
    return "\n\n".join(parts) + "\n"


def sentences(left_out: dict[str, str]) -> list[str]:
    """One sentence per reason, with the schemes it holds for."""
    names: dict[str, list[str]] = {}
    for scheme, reason in left_out.items():
        names.setdefault(reason, []).append(scheme)
    return [f"{', '.join(found)}: {reason.rstrip('.')}." for reason, found in names.items()]


def picture_name(model: str, task: str) -> str:
    """Name of a picture without its ending."""
    return f"pareto_{slug(f'{model_title(model)}-{task}')}".replace(":", "-")


def picture_files(board: Leaderboard) -> dict[str, bytes]:
    """The pictures of all tables as PDF, SVG and PNG."""
    files = {}
    for (name, task), lines in board.tables().items():
        if (drawn := picture(lines)) is None:
            continue
        for kind in DATES:
            files[f"{picture_name(name, task)}.{kind}"] = rendered(drawn[0], kind)
        files[f"{picture_name(name, task)}.png"] = png(drawn[0])
    return files


def png(canvas: Any) -> bytes:
    """A figure as PNG, without the versions that made it."""
    content = io.BytesIO()
    canvas.savefig(content, format="png", metadata={"Software": None}, facecolor="white")
    return content.getvalue()
