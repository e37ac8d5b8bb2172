"""Tables of measured and published evidence in pages and README, each between comments with its name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import log2
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from evidence_pictures import Losses, Values, ranked

from hf_posenc import patch_model
from hf_posenc.eval.results.paired import paired
from hf_posenc.eval.results.rows import DocumentScore, Row
from hf_posenc.insight.advise.evidence import WITH_TRAINING, ZERO_SHOT, MeasuredRow, Shown, measured_at
from hf_posenc.insight.advise.memory import cache_under, measured
from hf_posenc.insight.bench import random_model
from hf_posenc.insight.bench.models import PATCHED
from hf_posenc.patching.state import scheme_of
from hf_posenc.schemes.entry import UNPATCHED

DOCS = Path(__file__).parent
PAGES = {
    "choose.md": DOCS / "choose.md", "start.md": DOCS / "start.md", "README.md": DOCS.parent / "README.md",
    "zh/README.md": DOCS / "zh" / "README.md",
}  # fmt: skip
HEAD = "| scheme | loss at {far} | passkeys found, % | loss · passkeys at {near} | time of prefill · decoding |"
TRUNCATED = "truncated"
NEAR, FAR = 4.0, 8.0
"""Factors of the two ranked comparisons."""
REAL_LAYERS, MIB = 30, 2**20


def tables(page: str, demo: dict[str, Any]) -> dict[str, str]:
    """The tables of a page, by the names in its comments."""
    rows = measured_at(NEAR)
    if page == "start.md":
        return {"fixed factor": demo_table(demo)}
    if page.endswith("README.md"):
        return {"real model": real_table()}
    return {
        "real model": real_table_with_costs(),
        "real model far": far_table(),
        "real encoder": retrieval_table(),
        "measured": measured_table(rows, "[{name}](schemes/{name}.md)"),
        "measured far": measured_table(measured_at(FAR), "[{name}](schemes/{name}.md)", timed=False),
        "published": published_table(ZERO_SHOT),
        "published with training": published_table(WITH_TRAINING),
    }


def real_scores(metric: str, file: str = "real_model.jsonl") -> dict[tuple[str, int], dict[str, float]]:
    """Scores of each window, or of each hidden number, of a real model by scheme and length."""
    scores: dict[tuple[str, int], dict[str, float]] = {}
    for line in (DOCS / file).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["metric"] == metric:
            name = row["document"] if row["depth"] is None else f"{row['document']} {row['depth']}"
            scores.setdefault((row["scheme"], row["length"]), {})[name] = row["value"]
    return scores


def real_losses() -> Losses:
    """Loss of each window of a real model."""
    return real_scores("nll")


def real_table() -> str:
    """Table of a real model: loss by length, its change at the longest length, and the numbers found at each length."""
    by_cell, numbers = real_losses(), real_scores("acc")
    near, *farther = lengths = sorted({length for _, length in by_cell})
    losses = [f"loss at {near:,} (1×)", *(f"at {far:,} ({far // near}×)" for far in farther)]
    asked, places = len(numbers[UNPATCHED, near]), " · ".join(f"{length:,}" for length in lengths)
    heads = [*losses, "change (95 %)", f"found of {asked} numbers, at {places}"]
    lines = [f"| scheme | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for scheme in ranked(by_cell):
        cells = [loss_of(by_cell.get((scheme, length))) for length in lengths]
        change = change_of(*map(window_scores, (by_cell[scheme, farther[-1]], by_cell[UNPATCHED, near])), 1, 2)
        shares = " · ".join(share_of(numbers.get((scheme, length))) for length in lengths)
        name = scheme if scheme == UNPATCHED else f"`{scheme}`"
        lines.append(f"| {' | '.join([name, *cells, change, shares])} |")
    return "\n".join(lines)


def real_table_with_costs() -> str:
    """Table of a real model, and what a prefill of the longest length costs: time, peak memory and KV cache."""
    lines = real_table().split("\n")
    costs = real_costs()
    columns = [" time | peak, MiB | cache, MiB |", "---:|---:|---:|"]
    for scheme in ranked(real_losses()):
        time, peak, cache = costs[scheme.split()[0]]  # searched factors cost as much as others
        columns.append(f" {time:.2f} | {peak / MIB:.0f} | {cache / MIB:.0f} |")
    return "\n".join(line + more for line, more in zip(lines, columns, strict=True))


def real_costs() -> dict[str, tuple[float, int, int]]:
    """Costs of a prefill by scheme: time over the unpatched model's, peak memory, and KV cache, of all layers.

    One layer was measured, and all are equal. Each of the others adds its KV cache to the peak. So do the embeddings,
    once: they are the input of the first layer, and stay in memory beside the input of a later one.
    """
    bench = json.loads((DOCS / "real_model_bench.json").read_text(encoding="utf-8"))
    shape = tuple(map(int, bench["about"]["model"].split(",")))
    costs: dict[str, tuple[float, int, int]] = {}
    for cell in bench["cells"]:
        scheme, length, models = cell["scheme"].split(":")[0], cell["length"], cell["models"]
        model: Any = random_model(shape, length // 2, torch.bfloat16)
        memory = measured(model, length, causal=True)
        patch_model(model, scheme, target_length=length)
        caches = memory.cache, cache_under(scheme_of(model), memory, length)
        times = 1.0, cell["over"][UNPATCHED]["processor_time"]["median"]
        for name, role, time, cache in zip((UNPATCHED, scheme), (UNPATCHED, PATCHED), times, caches, strict=True):
            embeddings = length * shape[1] * model.dtype.itemsize
            peak = models[role]["memory_bytes"] + embeddings + (REAL_LAYERS - 1) * cache
            costs.setdefault(name, (time, peak, REAL_LAYERS * cache))
    return costs


def far_table() -> str:
    """Table of a real model at four times its trained length; two windows have no interval, so each change is shown."""
    by_cell = real_scores("nll", "real_model_32k.jsonl")
    near, far = sorted({length for _, length in by_cell})
    lines = [
        f"| scheme | loss at {near:,} (1×) | at {far:,} ({far // near}×) | change, each novel |",
        "|---|---:|---:|---:|",
    ]
    for scheme in ranked(by_cell):
        cells = [loss_of(by_cell[scheme, length]) for length in (near, far)]
        changes = [signed(value - by_cell[UNPATCHED, near][name], 2) for name, value in by_cell[scheme, far].items()]
        name = scheme if scheme == UNPATCHED else f"`{scheme}`"
        lines.append(f"| {' | '.join([name, *cells, ' · '.join(changes)])} |")
    return "\n".join(lines)


def change_of(scores: Sequence[DocumentScore], reference: Sequence[DocumentScore], unit: float, digits: int) -> str:
    """Format the mean difference on the same documents with its 95 % interval, in a unit."""
    change = paired("", "", scores, reference)
    if change is None or change.low is None or change.high is None:
        raise SystemExit("There are too few documents for an interval. Measure on three texts or more.")
    mean, low, high = (signed(value / unit, digits) for value in (change.difference, change.low, change.high))
    return f"{mean} ({low} … {high})"


def window_scores(losses: Mapping[str, float]) -> list[DocumentScore]:
    """Losses of windows as document scores; each window is of another text, and a cluster of its own."""
    return [DocumentScore("", name, name, None, None, "nll", value) for name, value in losses.items()]


def share_of(hits: Mapping[str, float] | None) -> str:
    """Format how many of the hidden numbers were found."""
    return f"{sum(hits.values()):.0f}" if hits else "–"


def loss_of(by_window: Mapping[str, float] | None) -> str:
    """Format the mean loss over windows."""
    return f"{fmean(by_window.values()):.2f}" if by_window else "–"


def signed(value: float, digits: int) -> str:
    """Format a number with a typographic sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


Ranks = dict[tuple[str, int], list[list[int]]]
"""Ranks of each document for each of its queries, by task and length."""


def retrieval_table() -> str:
    """Table of retrieval with a real encoder, from the ranks that examples/long_retrieval.py wrote."""
    ways: dict[str, Ranks] = {}
    for line in (DOCS / "real_encoder.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        ways.setdefault(row["way"], {})[row["task"], row["length"]] = row["ranks"]
    tasks, lengths = (list(dict.fromkeys(keys)) for keys in zip(*ways[TRUNCATED], strict=True))
    far = max(lengths)
    head = ["vectors of a document", *tasks, f"nDCG@10 at {far:,}", f"against truncation at {far:,}"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for way, ranks in ways.items():
        recalls = [" · ".join(f"{100 * recall(ranks[task, length]):.0f}" for length in lengths) for task in tasks]
        gains = " · ".join(f"{fmean(map(ndcg_of, chain(*ranks[task, far]))):.2f}" for task in tasks)
        scores = (recall_scores(one, far) for one in (ranks, ways[TRUNCATED]))
        change = "" if way == TRUNCATED else change_of(*scores, 0.01, 0)
        lines.append(f"| {' | '.join([way, *recalls, gains, change])} |")
    return "\n".join(lines)


def recall(ranks: list[list[int]]) -> float:
    """Share of the queries whose document was found first."""
    return fmean(rank == 1 for rank in chain(*ranks))


def ndcg_of(rank: int) -> float:
    """NDCG@10 of a query with one relevant document."""
    return 1 / log2(1 + rank) if rank <= 10 else 0.0


def recall_scores(ranks: Ranks, length: int) -> list[DocumentScore]:
    """Recall@1 of every query at a length; the queries of one document are a cluster."""
    return [
        DocumentScore("retrieval", f"{task} {own} {query}", f"{task} {own}", length, None, "recall", float(rank == 1))
        for (task, n), of_task in ranks.items() if n == length
        for own, of_document in enumerate(of_task)
        for query, rank in enumerate(of_document)
    ]  # fmt: skip


def measured_table(rows: list[MeasuredRow], link: str, head: str = HEAD, *, timed: bool = True) -> str:
    """Format measured rows as a Markdown table; ``link`` formats names of schemes, ``timed`` adds the times."""
    far, near = f"{rows[0].length:,} tokens ({rows[0].factor:g}×)", f"{rows[0].trained_length} tokens"
    lines = [head.format(far=far, near=near), "|---|---:|---:|---:|---:|", *(measured_line(row, link) for row in rows)]
    return "\n".join(lines if timed else [line.rsplit("|", 2)[0] + "|" for line in lines])


def measured_line(row: MeasuredRow, link: str) -> str:
    """Format one measured row."""
    name = row.scheme if row.scheme == UNPATCHED else link.format(name=row.scheme)
    keys, loss = row.passkeys, row.loss
    time = f"{row.prefill:.2f} · {row.decode:.2f}" if row.prefill and row.decode else "1 · 1"
    share = f"{100 * keys.value:.0f} ({100 * keys.low:.0f}–{min(100, 100 * keys.high):.0f})"
    return f"| {name} | {loss.value:.2f} | {share} | {loss.at_trained:.2f} · {100 * keys.at_trained:.0f} | {time} |"


def published_table(claims: Iterable[Shown]) -> str:
    """Format published claims as a Markdown table."""
    lines = [f"| {linked(one.scheme)} | {kind_of(one)}[{one.claim}]({address(one.source)}) |" for one in claims]
    return "\n".join(["| scheme | published claim |", "|---|---|", *lines])


def linked(scheme: str) -> str:
    """Link each part of a composition to its page."""
    return " + ".join(f"[{part}](schemes/{part}.md)" for part in scheme.split("+"))


def kind_of(one: Shown) -> str:
    """How the model of a claim encodes positions; empty for a rotation."""
    return {"rotation": "", "table": "position table: ", "bias": "ALiBi: "}[one.kind]


def address(source: str) -> str:
    """URL of a source."""
    name = source.removeprefix("arXiv:")
    return f"https://arxiv.org/abs/{name}" if name != source else f"https://{source}"


def demo_values(demo: dict[str, Any], metric: str) -> Values:
    """Loss, or share of passkeys found, by scheme and length."""
    rows = [Row(**row) for row in demo["rows"]]
    return {(row.scheme, row.length): row.value for row in rows if row.metric == metric and row.length is not None}


def demo_table(demo: dict[str, Any]) -> str:
    """Table of a demo: loss and passkeys of every line at every length."""
    lengths, trained = demo["about"]["lengths"], demo["about"]["trained_length"]
    losses, shares = (demo_values(demo, metric) for metric in ("nll", "acc"))
    head = " | ".join(["scheme", *(f"{n:,} ({n // trained}×)" for n in lengths)])
    lines = [
        " | ".join([scheme, *(f"{losses[scheme, n]:.2f} · {100 * shares[scheme, n]:.0f}" for n in lengths)])
        for scheme in dict.fromkeys(scheme for scheme, _ in losses)
    ]
    return "\n".join([f"| {head} |", "|---|" + "---:|" * len(lengths), *(f"| {line} |" for line in lines)])


def filled(page: str, text: str, demo: dict[str, Any]) -> str:
    """Write the current tables into a page."""
    return between_comments(page, text, tables(page, demo))


def between_comments(page: str, text: str, written: dict[str, str]) -> str:
    """Replace the generated parts of a page, by the names in the comments around them."""
    for name, table in written.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise SystemExit(f"{page} needs the comments {begin} and {end} once each, around the table.")
        text = pattern.sub(lambda _, new=f"{begin}\n{table}\n{end}": new, text)  # type: ignore[misc]
    return text
