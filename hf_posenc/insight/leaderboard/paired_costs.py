"""Time and memory of schemes over those of the unpatched model, timed alternately (`hf_posenc.insight.bench`).

Finished measurements are kept in a table of the same ``cells.sqlite`` that has the scores, so that the same command
resumes. Only ratios are meant to be compared between machines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hf_posenc.core.source_digest import source_digest
from hf_posenc.eval.comparison.identity import versions
from hf_posenc.eval.results.record import key_of
from hf_posenc.eval.results.store import Store
from hf_posenc.insight.bench.cell import BenchCell
from hf_posenc.insight.bench.devices import Device
from hf_posenc.insight.bench.run import bench
from hf_posenc.insight.bench.variants import PATCHED, UNPATCHED
from hf_posenc.insight.leaderboard.line import PairedCost
from hf_posenc.insight.leaderboard.machine import machine
from hf_posenc.schemes.entry import Entry
from hf_posenc.schemes.spec import plan

TABLE = "CREATE TABLE IF NOT EXISTS paired_costs (key TEXT PRIMARY KEY, costs TEXT NOT NULL) WITHOUT ROWID"
Found = dict[str, tuple[PairedCost, ...]]


@dataclass(frozen=True)
class Timing:
    """How costs are measured.

    Attributes:
        length: tokens of a text, and in the KV cache of a decoding step.
        factor: that every scheme is patched with, where its entry has none.
        cases: ``prefill`` and ``decode``, or one of them.
        rounds: pairs of measurements.
        threads: of torch.
        device: that the model runs on.
    """

    length: int
    factor: float
    cases: Sequence[str]
    rounds: int
    threads: int
    device: Device

    def key(self, entry: Entry, digest: str) -> str:
        """Key of the costs of an entry on the model of a digest, as this code measures them on this machine."""
        settings = [self.length, self.factor, list(self.cases), self.rounds, self.threads, self.device.name]
        code = [source_digest(cls) for cls, _ in plan(entry.scheme, entry.own_options).parts]  # type: ignore[arg-type]
        return key_of({
            **entry.settings(), "code": code, "versions": versions(), "model": digest,
            "timing": settings, "machine": machine(self.threads),
        })  # fmt: skip


def paired_costs(
    model: Any,
    entries: Sequence[Entry],
    store: Store,
    digest: str,
    timing: Timing,
    progress: Callable[[float, str], None],
) -> Found:
    """Costs of every entry by label; those that the store does not have are measured and stored first.

    Args:
        model: unpatched.
        entries: patched schemes; one that is refused has no costs.
        store: of the scores of the same model.
        digest: of the model.
        timing: see there.
        progress: called with the completed fraction and a description of the current step.
    """
    found: Found = {}
    for number, entry in enumerate(entries):
        key = timing.key(entry, digest)
        if (kept := load(store, key)) is None:
            progress(number / len(entries), f"time and memory of {entry.label} ({number + 1} of {len(entries)})")
            kept = measured(model, entry, timing)
            save(store, key, kept)
        found[entry.label] = kept
    return found


def measured(model: Any, entry: Entry, timing: Timing) -> tuple[PairedCost, ...]:
    """Measure one entry in all cases."""
    cells = bench(
        model, [entry], [timing.length], device=timing.device, threads=timing.threads, cases=timing.cases,
        baselines=[UNPATCHED], factor=timing.factor, rounds=timing.rounds,
    )  # fmt: skip
    return tuple(cost for cell in cells if (cost := cost_of(cell)) is not None)


def cost_of(cell: BenchCell) -> PairedCost | None:
    """The costs of a measured cell; None where it was refused or failed."""
    time = cell.time_ratio(UNPATCHED)
    if time is None:
        return None
    seconds = median(elapsed.wall for elapsed in cell.models[PATCHED].times)
    memory = cell.memory_ratio(UNPATCHED)
    return PairedCost(cell.case, cell.length, time.median, time.low, time.high, memory, seconds)


def load(store: Store, key: str) -> tuple[PairedCost, ...] | None:
    """Stored costs; None where there are none."""
    with store.explained_errors():
        store.connection.execute(TABLE)
        row = store.connection.execute("SELECT costs FROM paired_costs WHERE key = ?", (key,)).fetchone()
    return None if row is None else tuple(PairedCost(**cost) for cost in json.loads(row[0]))


def save(store: Store, key: str, costs: tuple[PairedCost, ...]) -> None:
    """Store costs."""
    content = json.dumps([asdict(cost) for cost in costs])
    with store.explained_errors():
        store.connection.execute("INSERT OR REPLACE INTO paired_costs VALUES (?, ?)", (key, content))
