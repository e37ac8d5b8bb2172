"""Tables of measured and published evidence in pages and README, between ``<!-- NAME: begin -->`` and ``… end -->``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from hf_posenc.eval.results.paired import paired
from hf_posenc.eval.results.rows import DocumentScore, Row
from hf_posenc.eval.tasks.ranking import ndcg
from hf_posenc.insight.advise.evidence import WITH_TRAINING, ZERO_SHOT, MeasuredRow, Shown, measured_at
from hf_posenc.schemes.entry import UNPATCHED

DOCS = Path(__file__).parent
PAGES = {
    "choose.md": DOCS / "choose.md", "start.md": DOCS / "start.md", "README.md": DOCS.parent / "README.md",
    "zh/README.md": DOCS / "zh" / "README.md",
}  # fmt: skip
HEAD = "| scheme | loss at {far} | passkeys found at {far} | loss · passkeys at {near} | time of prefill · decoding |"
TRUNCATED = "truncated"
NEAR, FAR = 4.0, 8.0
"""Factors of the two ranked comparisons."""


def tables(page: str, demo: dict[str, Any]) -> dict[str, str]:
    """The tables of a page, by the name in its comments."""
    rows = measured_at(NEAR)
    if page == "start.md":
        return {"fixed factor": demo_table(demo["fixed"])}
    if page.endswith("README.md"):
        return {"real model": real_table()}
    return {
        "real model": real_table(),
        "real encoder": retrieval_table(),
        "measured": measured_table(rows, "[{name}](schemes/{name}.md)"),
        "measured far": measured_table(measured_at(FAR), "[{name}](schemes/{name}.md)", timed=False),
        "published": published_table(ZERO_SHOT),
        "published with training": published_table(WITH_TRAINING),
    }


def real_table() -> str:
    """Loss of a real model at and beyond its trained length, from the ``documents.jsonl`` of a comparison."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for line in (DOCS / "real_model.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["metric"] == "nll":
            found.setdefault((row["scheme"], row["length"]), {})[row["document"]] = row["value"]
    near, far = sorted({length for _, length in found})
    lines = [f"| scheme | loss at {near:,} (1×) | at {far:,} (2×) | change, window by window |", "|---|---:|---:|---:|"]
    for scheme in sorted({name for name, _ in found}, key=lambda name: fmean(found[name, far].values())):
        changes = [value - found[UNPATCHED, near][document] for document, value in found[scheme, far].items()]
        losses = [f"{fmean(found[scheme, length].values()):.2f}" for length in (near, far)]
        name = scheme if scheme == UNPATCHED else f"`{scheme}`"
        lines.append(f"| {' | '.join([name, *losses, signed(min(changes)) + ' … ' + signed(max(changes))])} |")
    return "\n".join(lines)


def signed(value: float, digits: int = 2) -> str:
    """With its sign, as it is typeset."""
    return f"{value:+.{digits}f}".replace("-", "−")


Ranks = dict[tuple[str, int], list[list[int]]]
"""Ranks of each document for its queries, by task and length."""


def retrieval_table() -> str:
    """Retrieval by a real encoder, from the ranks that examples/long_retrieval.py wrote."""
    ways: dict[str, Ranks] = {}
    for line in (DOCS / "real_encoder.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        ways.setdefault(row["way"], {})[row["task"], row["length"]] = row["ranks"]
    tasks, lengths = (list(dict.fromkeys(keys)) for keys in zip(*ways[TRUNCATED], strict=True))
    far = max(lengths)
    head = ["", *tasks, f"nDCG@10 at {far:,}", f"against truncation at {far:,}"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for way, ranks in ways.items():
        recalls = [" · ".join(f"{100 * recall(ranks[task, length]):.0f}" for length in lengths) for task in tasks]
        gains = " · ".join(f"{fmean(map(ndcg_of, chain(*ranks[task, far]))):.2f}" for task in tasks)
        change = "" if way == TRUNCATED else change_of(ranks, ways[TRUNCATED], far)
        lines.append(f"| {' | '.join([way, *recalls, gains, change])} |")
    return "\n".join(lines)


def recall(ranks: list[list[int]]) -> float:
    """Share of the queries whose document was found first."""
    return fmean(rank == 1 for rank in chain(*ranks))


def ndcg_of(rank: int) -> float:
    """NDCG@10 of a query with one relevant document."""
    return ndcg(["other"] * (rank - 1) + ["own"], {"own": 1.0})


def change_of(ranks: Ranks, reference: Ranks, length: int) -> str:
    """Recall@1 of all tasks minus that of a reference, on the same queries, with its interval; in points."""
    found = paired("", "", recall_scores(ranks, length), recall_scores(reference, length))
    if found is None or found.low is None or found.high is None:
        raise SystemExit("docs/real_encoder.jsonl has too few queries for an interval.")
    return f"{signed(100 * found.difference, 0)} ({signed(100 * found.low, 0)} … {signed(100 * found.high, 0)})"


def recall_scores(ranks: Ranks, length: int) -> list[DocumentScore]:
    """Recall@1 of every query at a length; those of one document are a cluster."""
    return [
        DocumentScore("retrieval", f"{task} {own} {query}", f"{task} {own}", length, None, "recall", float(rank == 1))
        for (task, n), of_task in ranks.items() if n == length
        for own, of_document in enumerate(of_task)
        for query, rank in enumerate(of_document)
    ]  # fmt: skip


def measured_table(rows: list[MeasuredRow], link: str, head: str = HEAD, *, timed: bool = True) -> str:
    """Measured rows as a Markdown table; ``link`` formats the name of a scheme. Rough times are left out."""
    far, near = f"{rows[0].length:,} tokens ({rows[0].factor:g}×)", f"{rows[0].trained_length} tokens"
    lines = [head.format(far=far, near=near), "|---|---:|---:|---:|---:|", *(measured_line(row, link) for row in rows)]
    return "\n".join(lines if timed else [line.rsplit("|", 2)[0] + "|" for line in lines])


def measured_line(row: MeasuredRow, link: str) -> str:
    """A row of the table."""
    name = row.scheme if row.scheme == UNPATCHED else link.format(name=row.scheme)
    keys, loss = row.passkeys, row.loss
    time = f"{row.prefill:.2f} · {row.decode:.2f}" if row.prefill and row.decode else "1 · 1"
    share = f"{100 * keys.value:.0f} % ({100 * keys.low:.0f}–{min(100, 100 * keys.high):.0f})"
    return f"| {name} | {loss.value:.2f} | {share} | {loss.at_trained:.2f} · {100 * keys.at_trained:.0f} % | {time} |"


def published_table(claims: Iterable[Shown]) -> str:
    """Published claims as a Markdown table."""
    lines = [f"| {linked(one.scheme)} | {kind_of(one)}[{one.claim}]({address(one.source)}) |" for one in claims]
    return "\n".join(["| scheme | published claim |", "|---|---|", *lines])


def linked(scheme: str) -> str:
    """The parts of a composition, each linked to its page."""
    return " + ".join(f"[{part}](schemes/{part}.md)" for part in scheme.split("+"))


def kind_of(one: Shown) -> str:
    """What the model of a claim keeps positions in, where that is no rotation."""
    return {"rotation": "", "table": "position table: ", "bias": "ALiBi: "}[one.kind]


def address(source: str) -> str:
    """The address of a source."""
    name = source.removeprefix("arXiv:")
    return f"https://arxiv.org/abs/{name}" if name != source else f"https://{source}"


def demo_table(results: dict[str, Any]) -> str:
    """The results of a demo: loss and passkeys of every line at every length."""
    lengths, trained = results["about"]["lengths"], results["about"]["trained_length"]
    rows = {(row.scheme, row.length, row.metric): row.value for row in (Row(**row) for row in results["rows"])}
    head = " | ".join(["scheme", *(f"{n:,} ({n // trained}×)" for n in lengths)])
    lines = [
        " | ".join([scheme, *(f"{rows[scheme, n, 'nll']:.2f} · {100 * rows[scheme, n, 'acc']:.0f} %" for n in lengths)])
        for scheme in dict.fromkeys(scheme for scheme, _, _ in rows)
    ]
    return "\n".join([f"| {head} |", "|---|" + "---:|" * len(lengths), *(f"| {line} |" for line in lines)])


def filled(page: str, text: str, demo: dict[str, Any]) -> str:
    """A page with its tables as they are now."""
    return between_comments(page, text, tables(page, demo))


def between_comments(page: str, text: str, written: dict[str, str]) -> str:
    """A page with what is written by a program, by the name in the comments around it."""
    for name, table in written.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise SystemExit(f"{page} needs the comments {begin} and {end} once each, around the table.")
        text = pattern.sub(lambda _, new=f"{begin}\n{table}\n{end}": new, text)  # type: ignore[misc]
    return text
