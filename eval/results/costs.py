"""What the measurement of a cell costs: time, peak memory, and the KV cache that its scheme keeps for every token.

Costs differ from run to run. They are stored beside the cells, apart from the results, which equal settings make equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from hf_posenc.eval.results.record import Record
from hf_posenc.eval.results.store import Store

TABLE = """CREATE TABLE IF NOT EXISTS costs (
    key TEXT PRIMARY KEY, peak_memory INTEGER, memory_of TEXT NOT NULL, cache_per_token REAL
) WITHOUT ROWID"""


@dataclass(frozen=True)
class Costs:
    """Costs of one cell, besides its time, which its record has.

    Attributes:
        peak_memory: bytes; None where it cannot be measured.
        memory_of: whose memory that is: ``"process"``, weights and libraries included, or the device's name.
        cache_per_token: bytes of the KV cache for each token it holds; None for a model without one.
    """

    peak_memory: int | None
    memory_of: str
    cache_per_token: float | None


@dataclass(frozen=True)
class SchemeCosts:
    """Costs of a scheme: of all its cells together.

    Attributes:
        label: of the entry.
        seconds: in total.
        peak_memory, memory_of, cache_per_token: as in `Costs`; the largest of its cells.
    """

    label: str
    seconds: float
    peak_memory: int | None
    memory_of: str
    cache_per_token: float | None


def save_costs(store: Store, key: str, costs: Costs) -> None:
    """Store the costs of a cell beside its record."""
    with store.explained_errors():
        store.connection.execute(TABLE)
        store.connection.execute("INSERT OR REPLACE INTO costs VALUES (?, ?, ?, ?)", (key, *asdict(costs).values()))


def load_costs(store: Store) -> dict[str, Costs]:
    """The stored costs by key of their cell; none in stores of earlier versions."""
    with store.explained_errors():
        store.connection.execute(TABLE)
        return {key: Costs(*values) for key, *values in store.connection.execute("SELECT * FROM costs").fetchall()}


def costs_by_scheme(records: Sequence[Record], costs: Mapping[str, Costs]) -> list[SchemeCosts]:
    """The costs of every scheme that has finished cells, in order."""
    labels = dict.fromkeys(record.scheme for record in records if record.state == "done")
    return [
        of_scheme(label, [r for r in records if r.scheme == label and r.state == "done"], costs) for label in labels
    ]


def of_scheme(label: str, records: Sequence[Record], costs: Mapping[str, Costs]) -> SchemeCosts:
    """The costs of the cells of one scheme together."""
    known = [costs[record.key] for record in records if record.key in costs]
    peaks = [one.peak_memory for one in known if one.peak_memory is not None]
    caches = [one.cache_per_token for one in known if one.cache_per_token is not None]
    return SchemeCosts(
        label, sum(record.seconds for record in records), max(peaks, default=None),
        ", ".join(dict.fromkeys(one.memory_of for one in known if one.peak_memory is not None)),
        max(caches, default=None),
    )  # fmt: skip
