"""Tables of a search: the held-out lines and the arms, in plain text and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hf_posenc.insight.search.trial import HeldOut, Trial

NONE = "—"


def held_out_table(lines: Sequence[HeldOut], chosen: str) -> list[Sequence[str]]:
    """Loss of every line, the chosen arm minus it with its interval, and the corrected p-value."""
    rows: list[Sequence[str]] = [("held-out text", "loss", "chosen − it, 95 % interval", "p (Holm)")]
    for line in lines:
        name = f"{line.label} (chosen)" if line.label == chosen else line.label
        if line.loss is None:
            rows.append((name, NONE, line.note, NONE))
            continue
        d = line.difference
        p = NONE if d is None or d.p_holm is None else f"{d.p_holm:.3g}"
        rows.append((name, f"{line.loss:.3f}{spread(line.stderr)}", difference(line), p))
    return rows


def trial_table(trials: Sequence[Trial], most: int | None = None) -> list[Sequence[str]]:
    """The arms, best first, as far as each came."""
    rows: list[Sequence[str]] = [("arm", "loss", "windows", "rung", "note")]
    for trial in trials[:most]:
        loss = NONE if trial.loss is None else f"{trial.loss:.3f}{spread(trial.stderr)}"
        rung = NONE if trial.rung is None else str(trial.rung + 1)
        rows.append((trial.label, loss, str(trial.windows), rung, note_of(trial)))
    left = len(trials) - len(rows) + 1
    return [*rows, *([(f"and {left} more, in search.csv", "", "", "", "")] if left else [])]


def note_of(trial: Trial) -> str:
    """Why an arm has no loss of its own."""
    return {"same": f"the same as {trial.note}", "measured": ""}.get(
        trial.state, f"{trial.state}. {trial.note}".strip()
    )


def difference(line: HeldOut) -> str:
    """``−0.031 (−0.044 … −0.018)``."""
    d = line.difference
    if d is None:
        return NONE
    between = "" if d.low is None or d.high is None else f" ({signed(d.low)} … {signed(d.high)})"
    return f"{signed(d.difference)}{between}"


def signed(value: float) -> str:
    """A number with its sign, and a true minus."""
    return f"{value:+.3f}".replace("-", "−")


def spread(stderr: float | None) -> str:
    """A standard error behind its value."""
    return "" if stderr is None else f" ± {stderr:.3f}"


def plain(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in columns of equal width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def marked(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    head, *body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return [f"| {' | '.join(line)} |" for line in lines]
