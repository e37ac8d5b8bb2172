"""Merge the results of earlier comparisons into one, without measuring anything."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_posenc.core.plotting.figures import require_matplotlib
from hf_posenc.errors import BadComparison, shown
from hf_posenc.eval.comparison.combine import combined
from hf_posenc.eval.comparison.reference import check_same_documents, compared_with
from hf_posenc.eval.comparison.run import STORE
from hf_posenc.eval.report.exports import write_exports
from hf_posenc.eval.results.comparison import FORMAT, Comparison
from hf_posenc.eval.results.costs import load_costs, save_costs
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.validate import folder_of_results

RESULTS = "results.json"


def merge_comparisons(
    runs: Sequence[str | Path],
    *,
    out: str | Path,
    name: str | None = None,
    against: str | None = None,
    command: str | None = None,
) -> Comparison:
    """Put the results of several runs of `compare` side by side, and write them into a folder as `compare` does.

    Nothing is measured. The folder can be merged again.

    Args:
        runs: folders of results, with their ``results.json`` and ``cells.sqlite``.
        out: another folder, for the merged results.
        name: of the merged comparison in reports; by default the names of its models.
        against: label of a line; the others are compared with it document by document, as in `compare`.
        command: printed in reports to repeat the merge.

    Raises:
        BadComparison: fewer than two runs, one that cannot be read, or runs that did not measure the same targets; or
            lines to compare that do not have the same documents.
        StoreUnusable: a folder is in use, or cannot be written.
        StoreChanged: another program has changed stored cells.
    """
    require_matplotlib()
    folders, folder = [Path(run) for run in runs], folder_of_results(out)
    if len(folders) < 2:
        raise BadComparison(f"A merge takes the folders of two runs or more, got {len(folders)}. Name another.")
    places = [run.resolve() for run in folders]
    if folder.resolve() in places:
        raise BadComparison(f"The results of {str(folder)!r} would be overwritten by the merge. Choose another --out.")
    parts = [read_run(run) for run in folders]
    if twice := [str(run) for number, run in enumerate(folders) if places[number] in places[:number]]:
        raise BadComparison(
            f"The run {shown(twice[0])} is named twice, and counts once. Name another, or leave it out."
        )
    comparison = compared_with(combined(parts, command), against)
    check_same_documents(comparison)
    if name is not None:
        comparison.about["model"] = name
    with Store(folder / STORE) as store:
        for record in comparison.records:
            store.put(record)
            if record.key in comparison.costs:
                save_costs(store, record.key, comparison.costs[record.key])
        write_exports(folder, comparison)
    return comparison


def read_run(folder: Path) -> Comparison:
    """Read a finished run: what its ``results.json`` says of it, and its records from the store.

    Raises:
        BadComparison: there are no such files, they are damaged, or of another format.
    """
    about, keys = read_results(folder / RESULTS)
    if not (folder / STORE).is_file():
        raise BadComparison(
            f"There is no {STORE} in {str(folder)!r}, which has the cells of its results. Restore it, or run the "
            "comparison again."
        )
    with Store(folder / STORE) as store:
        found, costs = [(store.get(key), label) for key, label in keys], load_costs(store)
    records = [(record, label) for record, label in found if record is not None]
    if len(records) < len(found):
        raise BadComparison(
            f"{len(found) - len(records)} cells of {str(folder / RESULTS)!r} are not in its {STORE}. Run the "
            "comparison again."
        )
    return Comparison(about, [replace(record, scheme=label) for record, label in records], costs)


def read_results(path: Path) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Read what a ``results.json`` says of its run, and the key and label of every cell.

    Raises:
        BadComparison: it cannot be read, or another version wrote it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, about = content["format"], content["about"]
        keys = [(str(cell["key"]), str(cell["scheme"])) for cell in content["cells"]]
        complete = isinstance(about["digests"]["model"], str) and all("label" in entry for entry in about["schemes"])
    except OSError as error:
        raise BadComparison(
            f"{str(path)!r} cannot be read ({error.strerror}). Name the folders of finished comparisons."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadComparison(f"{str(path)!r} holds no results of a comparison. Run it again.") from error
    if version != FORMAT or not complete:
        raise BadComparison(
            f"{os.fspath(path)!r} has format {shown(version)}, and format {FORMAT} is read. Run the comparison again."
        )
    return about, keys
