"""Write the evidence that recommendations rest on, and the tables of it in pages and README:

    hf-posenc leaderboard
    python docs/make_leaderboard.py
    hf-posenc leaderboard --models starter:llama --schemes … --lengths 256,2048 --output results/leaderboard_8x
    python docs/make_evidence.py

What was made last stays in docs/leaderboard and docs/leaderboard_8x.json, which are read where there is no folder of
results; docs/demo.json is of the demo of an earlier version. From the leaderboards comes
hf_posenc/insight/advise/measured.json, which `hf_posenc.advise` reads; from these, the demo and the published claims of
hf_posenc/insight/advise/evidence.py come the tables, between two comments each.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evidence_tables import PAGES, filled

from hf_posenc.insight.advise.measured_rows import FILE, MeasuredRow, MeasuredScore, measured_rows
from hf_posenc.insight.leaderboard import Leaderboard, read_leaderboard
from hf_posenc.insight.leaderboard.line import Line
from hf_posenc.schemes.entry import UNPATCHED

DOCS = Path(__file__).parent
BOARDS = (DOCS / "leaderboard" / "leaderboard.json", DOCS / "leaderboard_8x.json")
DEMO, RESULTS = DOCS / "demo.json", DOCS.parent / "results"
MODEL, LOSS, PASSKEYS = "starter:llama", "posenc_ppl", "posenc_passkey"


def evidence() -> dict[str, Any]:
    """Content of measured.json: a row for every scheme, at the longest length of either leaderboard."""
    rows = [row for board in BOARDS for row in rows_of(read_leaderboard(board))]
    return {"made_by": "python docs/make_evidence.py", "rows": [asdict(row) for row in rows]}


def rows_of(board: Leaderboard) -> Iterable[MeasuredRow]:
    """The rows of a leaderboard."""
    lines = {(line.scheme, line.task): line for line in board.lines if line.model == MODEL and line.use != "training"}
    baseline = score_of(lines[UNPATCHED, PASSKEYS])
    for (scheme, task), line in lines.items():
        if task == LOSS:
            found, costs = score_of(lines[scheme, PASSKEYS]), {cost.case: cost.time for cost in line.costs}
            lengths = line.scores[0].length, line.longest.length
            yield MeasuredRow(
                MODEL, *lengths, scheme, score_of(line), found, costs.get("prefill"), costs.get("decode"),
                finds(found, baseline),
            )  # fmt: skip


def score_of(line: Line) -> MeasuredScore:
    """The score of a line at its longest length."""
    one, rank = line.longest, line.rank
    if one.value is None or one.low is None or one.high is None or rank is None or line.scores[0].value is None:
        raise SystemExit(f"{line.scheme} has no score on {line.task}. Make a leaderboard of more documents.")
    return MeasuredScore(one.value, one.low, one.high, line.scores[0].value, one.n, rank.first, one.command)


def finds(found: MeasuredScore, baseline: MeasuredScore) -> bool:
    """Whether more than half of the passkeys are found, and surely more than by the unpatched model."""
    return found.value > 0.5 and found.low > baseline.high


def main() -> None:
    """Copy what was made, write the file, then the tables."""
    board = RESULTS / "leaderboard_8x" / "leaderboard.json"
    if board.is_file():
        shutil.copy(board, BOARDS[-1])
    write(FILE, evidence())
    measured_rows.cache_clear()
    demo = json.loads(DEMO.read_text(encoding="utf-8"))
    for name, path in PAGES.items():
        path.write_text(filled(name, path.read_text(encoding="utf-8"), demo), encoding="utf-8")


def write(path: Path, content: dict[str, Any]) -> None:
    """Write JSON that reads well in a diff."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
