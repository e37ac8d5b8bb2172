"""Write the evidence that recommendations rest on, and the tables of it in pages and README:

    python docs/make_evidence.py [results/demo]

Ranked comparisons that were measured are rows of docs/leaderboard.csv. From those of the bundled Llama at 4 and 8 times
its trained length comes hf_posenc/insight/advise/measured.json, which `hf_posenc.advise` reads. From it, docs/demo.json
and the published claims of hf_posenc/insight/advise/evidence.py come the tables, between two comments each, and the
pictures. A folder that `hf-posenc demo` has written replaces docs/demo.json.
"""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence_pictures import draw_demo, draw_real_model
from evidence_tables import PAGES, demo_values, filled, real_losses, real_scores

from hf_posenc.insight.advise.evidence import FILE, MeasuredRow, MeasuredScore, RealRow
from hf_posenc.schemes.entry import UNPATCHED

DOCS = Path(__file__).parent
LEADERBOARD, BOARDS = DOCS / "leaderboard.csv", ("4x", "8x")
DEMO, QUOTED = DOCS / "demo.json", ("model", "trained_length", "lengths", "samples", "keys", "versions", "command")
REAL = "SmolLM2-135M"
MODEL, LOSS, PASSKEYS = "starter:llama", "posenc_ppl", "posenc_passkey"


def evidence() -> dict[str, Any]:
    """Content of measured.json: a row for every scheme at the longest length of each ranked comparison."""
    rows = [row for board in BOARDS for row in rows_of(board_rows(board))]
    return {"made_by": "python docs/make_evidence.py", "real": real(), "rows": [asdict(row) for row in rows]}


def real() -> dict[str, dict[str, Any]]:
    """Compare every scheme of docs/real_model.jsonl with the unpatched model at the longest length."""
    losses, numbers = real_scores("nll"), real_scores("acc")
    near, far = (bound(length for _, length in losses) for bound in (min, max))
    schemes = [scheme for scheme, length in losses if length == far and (scheme, far) in numbers]
    loss = {scheme: fmean(losses[scheme, far].values()) for scheme in schemes}
    hits = {scheme: int(sum(numbers[scheme, far].values())) for scheme in schemes}
    return {
        scheme: asdict(
            RealRow(
                REAL, far / near, loss[scheme], loss[UNPATCHED], hits[scheme], hits[UNPATCHED],
                len(numbers[scheme, far]),
            )
        )
        for scheme in schemes
        if scheme != UNPATCHED
    }  # fmt: skip


def board_rows(board: str) -> list[dict[str, str]]:
    """The rows of one ranked comparison, shortest length first."""
    with LEADERBOARD.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["board"] == board]


def rows_of(rows: list[dict[str, str]]) -> Iterable[MeasuredRow]:
    """Yield the schemes of a ranked comparison that need no training."""
    lines: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        if row["model"] == MODEL and row["use"] != "training":
            lines.setdefault((row["scheme"], row["task"]), []).append(row)
    baseline = score_of(lines[UNPATCHED, PASSKEYS])
    for (scheme, task), line in lines.items():
        if task == LOSS:
            passkeys, longest = score_of(lines[scheme, PASSKEYS]), line[-1]
            times = [float(longest[f"{case}_time_ratio"] or "nan") for case in ("prefill", "decode")]
            yield MeasuredRow(
                MODEL, int(line[0]["length"]), int(longest["length"]), scheme, score_of(line), passkeys,
                *(None if time != time else time for time in times), finds(passkeys, baseline),
            )  # fmt: skip


def score_of(line: list[dict[str, str]]) -> MeasuredScore:
    """The score of a line at its longest length."""
    at_trained, longest = float(line[0]["value"]), line[-1]
    value, low, high = (float(longest[name]) for name in ("value", "low", "high"))
    rank = int(longest["rank_first"])
    return MeasuredScore(value, low, high, at_trained, int(longest["n"]), rank, command_of(longest))


def command_of(row: dict[str, str]) -> str:
    """Command that measures one cell again."""
    options = ["--set", "keys=24", "--set", "depths=[0.25]"] if row["task"] == PASSKEYS else []
    words = ["--schemes", row["scheme"], "--tasks", row["task"], "--lengths", row["length"], *options]
    return shlex.join(["hf-posenc", "compare", "--model", MODEL, "--dtype", "float32", *words, "--out", "results/cell"])


def finds(passkeys: MeasuredScore, baseline: MeasuredScore) -> bool:
    """Whether more than half of the passkeys are found, and significantly more than by the unpatched model."""
    return passkeys.value > 0.5 and passkeys.low > baseline.high


def main() -> None:
    """Write measured.json, take over the results of a demo, and write all tables and pictures."""
    write(FILE, evidence())
    if len(sys.argv) > 1:
        write(DEMO, demo_of(Path(sys.argv[1])))
    demo = json.loads(DEMO.read_text(encoding="utf-8"))
    for name, path in PAGES.items():
        path.write_text(filled(name, path.read_text(encoding="utf-8"), demo), encoding="utf-8")
    draw_real_model(real_losses(), DOCS / "pictures" / "real_model.png")
    draw_demo(demo_values(demo, "nll"), demo_values(demo, "acc"), DOCS / "demo.png")


def demo_of(folder: Path) -> dict[str, Any]:
    """The parts of a demo that pages quote: loss and passkeys over all depths, and the settings."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    quoted = {("posenc_ppl", "nll"), ("posenc_passkey", "acc")}
    rows = [row for row in results["rows"] if row["depth"] is None and (row["task"], row["metric"]) in quoted]
    return {"about": {name: results["about"][name] for name in QUOTED}, "rows": rows}


def write(path: Path, content: dict[str, Any]) -> None:
    """Write indented JSON, which reads well in a diff."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
