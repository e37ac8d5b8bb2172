"""Write the page `docs/versions.md` from the results that `.ci/matrix` recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from points import declared, lower_bounds, project

RECORD = Path(".ci") / "versions.json"
COLUMNS = ("torch", "transformers", "peft", "accelerate", "lm-eval", "datasets", "safetensors")
HEAD = """# Tested versions

Each row is an environment of its own in which the tests have run; `.ci/matrix` builds it, runs it and writes this page.
`pyproject.toml` allows {python}, {bounds}: the versions of the point `oldest`.
[Versions and deprecation](versioning.md) says how long versions are supported.
"""


def read_record(root: Path) -> dict[str, Any]:
    """Recorded rows by point and suite; empty if nothing has run."""
    file = root / RECORD
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def page(root: Path) -> str:
    """The text of the page: rows in the declared order of points, then the failures, then the suites."""
    points, suites = declared(root)
    rows = read_record(root)
    ordered = [rows[key] for suite in suites for point in points if (key := f"{point.name} {suite}") in rows]
    described = project(root)
    bounds = lower_bounds(described)
    allowed = ", ".join(f"{name} ≥ {bounds[name]}" for name in ("torch", "transformers", "peft", "lm-eval"))
    head = HEAD.format(python=f"Python {described['requires-python'].replace('>=', '≥ ')}", bounds=allowed)
    return "\n".join([head, *table(ordered), "", *problems(ordered), *commands(ordered)])


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of a Markdown table, one for each row."""
    titles = ("point", "Python", *COLUMNS, "suite", "passed", "failed", "skipped", "seconds", "date")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        versions = row.get("versions", {})
        counts = [row.get(name, "–") for name in ("passed", "failed", "skipped", "seconds")]
        cells = [row["point"], row.get("python", "–"), *(versions.get(name, "–") for name in COLUMNS), row["suite"]]
        lines.append(f"| {' | '.join(map(str, [*cells, *counts, row['date']]))} |")
    return lines


def problems(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of the section on failures, one for each failed test; empty if none failed."""
    failures = [(row, problem) for row in rows for problem in [row.get("error"), *row.get("failures", ())] if problem]
    lines = [f"- `{row['point']}`, {row['suite']}: {problem}" for row, problem in failures]
    return ["## Failures", "", *lines, ""] if lines else []


def commands(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of the section on suites, with the command of each."""
    commands = {row["suite"]: row["command"] for row in rows if "command" in row}
    return ["## Suites", "", *(f"- {name}: `{command}`" for name, command in commands.items()), ""]


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
