"""Write the evidence that recommendations rest on, and the tables of it in docs/choose.md and the README:

    hf-posenc leaderboard
    python docs/make_leaderboard.py
    python docs/make_evidence.py

From docs/leaderboard/leaderboard.json comes hf_posenc/insight/advise/measured.json, which `hf_posenc.advise` reads.
From that file and the published claims of hf_posenc/insight/advise/evidence.py come the tables, between two comments
each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_posenc.insight.advise.evidence import WITH_TRAINING, ZERO_SHOT, Shown
from hf_posenc.insight.advise.measured_rows import FILE, MeasuredRow, MeasuredScore, measured_evidence
from hf_posenc.insight.leaderboard import Leaderboard, read_leaderboard
from hf_posenc.insight.leaderboard.line import Line
from hf_posenc.schemes.entry import UNPATCHED

DOCS = Path(__file__).parent
BOARD = DOCS / "leaderboard" / "leaderboard.json"
MODEL, LOSS, PASSKEYS = "starter:llama", "posenc_ppl", "posenc_passkey"
PAGES = {"choose.md": DOCS / "choose.md", "README.md": DOCS.parent / "README.md"}
BEST = 4
"""Rows of the table in the README."""


def evidence_of(board: Leaderboard) -> dict[str, Any]:
    """Content of measured.json: a row for every scheme that was measured without training."""
    lines = {(line.scheme, line.task): line for line in board.lines if line.model == MODEL and line.use != "training"}
    baseline = score_of(lines[UNPATCHED, PASSKEYS])
    rows = [
        row_of(line, lines[line.scheme, PASSKEYS], baseline) for (_, task), line in lines.items() if task == LOSS
    ]  # fmt: skip
    about = {name: board.about[name] for name in ("command", "date", "machine", "versions", "settings")}
    return {"made_by": "python docs/make_evidence.py", **about, "rows": [asdict(row) for row in rows]}


def row_of(loss: Line, passkeys: Line, baseline: MeasuredScore) -> MeasuredRow:
    """The two lines of a scheme as a row."""
    trained = next(iter(loss.scores)).length
    found, costs = score_of(passkeys), {cost.case: cost.time for cost in loss.costs}
    return MeasuredRow(
        model=loss.model, trained_length=trained, length=loss.longest.length, scheme=loss.scheme, loss=score_of(loss),
        passkeys=found, prefill=costs.get("prefill", 1.0), decode=costs.get("decode", 1.0),
        cache_per_token=loss.cache_per_token or 0.0, finds=found.low > baseline.high,
    )  # fmt: skip


def score_of(line: Line) -> MeasuredScore:
    """The score of a line at its longest length."""
    one, rank = line.longest, line.rank
    if one.value is None or one.low is None or one.high is None or rank is None or line.scores[0].value is None:
        raise SystemExit(f"{line.scheme} has no score on {line.task}. Make a leaderboard of more documents.")
    return MeasuredScore(
        one.value, one.low, one.high, line.scores[0].value, one.n, rank.first, rank.last, rank.of, one.command
    )


def measured_table(rows: Iterable[MeasuredRow], link: str) -> str:
    """Measured rows as a Markdown table; ``link`` formats the name of a scheme."""
    lines = [
        f"| {link.format(name=row.scheme) if row.scheme != UNPATCHED else UNPATCHED} | {row.loss.value:.2f} | "
        f"{100 * row.passkeys.value:.0f} % ({100 * row.passkeys.low:.0f}–{min(100, 100 * row.passkeys.high):.0f}) | "
        f"{row.loss.at_trained:.2f} · {100 * row.passkeys.at_trained:.0f} % | {row.prefill:.2f} · {row.decode:.2f} |"
        for row in rows
    ]
    one = next(iter(measured_evidence().values()))
    at, times = f"{one.length:,} tokens ({one.factor:g}×)", f"{one.trained_length} tokens"
    head = f"| scheme | loss at {at} | passkeys found there | loss · passkeys at {times} | time of prefill · decoding |"
    return "\n".join([head, "|---|---:|---:|---:|---:|", *lines])


def published_table(claims: Iterable[Shown]) -> str:
    """Published claims as a Markdown table."""
    lines = [f"| {linked(one.scheme)} | {claim_of(one)} | {source_of(one.source)} |" for one in claims]
    return "\n".join(["| scheme | published claim | source |", "|---|---|---|", *lines])


def linked(scheme: str) -> str:
    """The parts of a composition, each linked to its page."""
    return " + ".join(f"[{part}](schemes/{part}.md)" for part in scheme.split("+"))


def claim_of(one: Shown) -> str:
    """A claim, and what its model keeps positions in where that is no rotation."""
    kinds = {"rotation": "", "table": "model with a position table: ", "bias": "model with ALiBi: "}
    return kinds[one.kind] + one.claim


def source_of(source: str) -> str:
    """A source as a link."""
    name = source.removeprefix("arXiv:")
    return f"[{source}](https://arxiv.org/abs/{name})" if name != source else f"[{source}](https://{source})"


def tables(page: str) -> dict[str, str]:
    """The tables of a page, by the name in its comments."""
    rows = list(measured_evidence().values())
    if page == "README.md":
        shown = [*rows[:BEST], measured_evidence()["yarn"], measured_evidence()[UNPATCHED]]
        return {"measured": measured_table(shown, "[`{name}`](docs/choose.md)")}
    return {
        "measured": measured_table(rows, "[{name}](schemes/{name}.md)"),
        "published": published_table(ZERO_SHOT),
        "published with training": published_table(WITH_TRAINING),
    }


def filled(page: str, text: str) -> str:
    """A page with its tables as they are now."""
    for name, table in tables(page).items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise SystemExit(f"{page} needs the comments {begin} and {end} once each, around the table.")
        text = pattern.sub(lambda _, new=f"{begin}\n{table}\n{end}": new, text)
    return text


def main() -> None:
    """Write the file, then the tables."""
    content = json.dumps(evidence_of(read_leaderboard(BOARD)), indent=1, ensure_ascii=False)
    FILE.write_text(content + "\n", encoding="utf-8")
    measured_evidence.cache_clear()
    for name, path in PAGES.items():
        path.write_text(filled(name, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
