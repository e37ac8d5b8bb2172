"""Write this package's section into the model card (``README.md``) of a checkpoint. The rest of the card is kept.

The section says how to load the checkpoint, its scheme and its lengths. Results of an evaluation become
``model-index`` metadata, which the Hub shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import BadComparison, shown
from hf_posenc.schemes.registry import list_schemes

CARD, TAG = "README.md", "hf_posenc"
LARGEST_FILE = 1 << 28  # bytes; a file of results may contain every request
OWN = f"{__name__.partition('.')[0]}."
START, END = "<!-- hf_posenc -->", "<!-- /hf_posenc -->"
FRONT_MATTER = "---\nlibrary_name: {library}\n---\n\n"
SECTION = """## How to load this

Positions were changed by `hf_posenc`: {scheme}, trained on {trained_length:,}
tokens, for texts of {target_length:,}. {loading}

A tokenizer that was saved after the model cuts texts at its `model_max_length`: set that to {target_length} or more.
"""
WITH_PACKAGE = """Without that package these weights compute something else, so they do not load.

```python
import hf_posenc
{imports}
model = hf_posenc.from_pretrained({arguments})
```"""
WITH_CODE = """The code that computes them is in this folder, for transformers to run:

```python
from transformers import {auto}
model = {auto}.from_pretrained("{name}", trust_remote_code=True)
```

With the package (`pip install hf_posenc`), `hf_posenc.from_pretrained("{name}")` runs none of it."""
PLAIN = "This checkpoint needs no package besides transformers; its `config.json` states the rotation."


def write_section(folder: Path, config: Mapping[str, Any], auto: str | None = None) -> None:
    """Write into the README of a checkpoint's ``folder`` how to load it. ``config`` is its ``position_scheme``.

    ``auto`` is the Auto class that loads the checkpoint if it brings its code.
    """
    names = [part["name"] for part in config["scheme"]]
    lengths = {"trained_length": config["trained_length"], "target_length": config["target_length"]}
    if auto is None:
        text, library = with_package(names, f'"{folder.name}"'), TAG
    else:
        text, library = WITH_CODE.format(auto=auto, name=folder.name), "transformers"
    section = SECTION.format(scheme="+".join(names), loading=text, **lengths)
    replace_section(folder, section, FRONT_MATTER.format(library=library))


def with_package(names: Collection[str], arguments: str) -> str:
    """Text that says how to load a model with these schemes by this package, after the import of foreign schemes."""
    modules = {record.name: record.target.partition(":")[0] for record in list_schemes() if record.name in names}
    foreign = {name: module for name, module in modules.items() if not module.startswith(OWN)}
    imports = "".join(f"import {module}  # registers {name}\n" for name, module in foreign.items())
    return WITH_PACKAGE.format(imports=imports, arguments=arguments)


def replace_section(folder: Path, section: str, front_matter: str) -> None:
    """Write this package's section into the README of ``folder``, in place of an earlier one. The rest is kept.

    A new file begins with ``front_matter``.
    """
    file = folder / CARD
    text = file.read_text(encoding="utf-8") if file.exists() else front_matter
    section = START + "\n" + section + END
    before, start, from_section = text.partition(START)
    _, end, after = from_section.partition(END)
    if start and end:
        text = before + section + after
    else:
        text = text.rstrip("\n") + ("\n\n" if text.strip() else "") + section + "\n"
    write_bytes(file, text.encode())


def update_metadata(folder: Path, **changes: Any) -> None:
    """Set attributes of the card's metadata (`huggingface_hub.ModelCardData`) in ``folder``. The text is kept."""
    from huggingface_hub import ModelCard

    file = folder / CARD
    card: Any = ModelCard(file.read_text(encoding="utf-8") if file.exists() else "", ignore_metadata_errors=True)
    for name, value in changes.items():
        setattr(card.data, name, value)
    card.data.tags = list(dict.fromkeys([*(card.data.tags or ()), TAG]))
    write_bytes(file, str(card).encode())


def write_results(folder: Path, results: Any, scheme: str) -> None:
    """Write the results of an evaluation into the metadata of the card in ``folder``, without results per depth.

    Args:
        folder: folder of a checkpoint with a card.
        results: return value of `hf_posenc.evaluate` or `hf_posenc.compare`, or a file or folder of such results.
        scheme: name of the checkpoint's scheme; rows of other schemes are left out.

    Raises:
        BadComparison: the results have no number of this scheme.
    """
    from huggingface_hub import EvalResult

    rows = [row for row in rows_of(results) if str(row.get("scheme")).partition(":")[0] == scheme]
    rows = [row for row in rows if row.get("depth") is None and isfinite(row["value"])]
    if not rows:
        raise BadComparison(f"There are no results of scheme {scheme!r} in {shown(results)}. Pass its own results.")
    kinds = read_object(folder / "config.json").get("architectures") or ()
    task = "fill-mask" if any("MaskedLM" in kind for kind in kinds) else "text-generation"
    eval_results = [
        EvalResult(
            task_type=task, dataset_type=row["task"], dataset_name=row["task"], metric_type=row["metric"],
            metric_value=row["value"], metric_name=metric_name(row),
            dataset_config=None if row["length"] is None else f"{row['length']} tokens",
        )
        for row in rows
    ]  # fmt: skip
    update_metadata(folder, model_name=folder.name, eval_results=eval_results)


def write_found_results(folder: Path, results: Any, beside: str | None, scheme: str) -> None:
    """Write ``results``, or else the results of this scheme in the folder ``beside``, if there are any.

    Raises:
        BadComparison: the ``results`` have no number of this scheme.
    """
    if results is not None:
        write_results(folder, results, scheme)
    elif beside is not None and Path(beside).is_dir():
        with suppress(BadComparison):
            write_results(folder, beside, scheme)


def metric_name(row: Mapping[str, Any]) -> str:
    """Name of a number in the Hub's table of results."""
    documents = f", {row['n']:,} documents" if row.get("n") else ""
    return row["metric"] + ("" if row["length"] is None else f" at {row['length']:,} tokens") + documents


def rows_of(results: Any) -> list[Mapping[str, Any]]:
    """The rows of results, which are read if ``results`` is a file or folder."""
    if isinstance(results, (str, PathLike)):
        return list(rows_in(Path(results)))
    rows: Iterable[Any] = getattr(results, "rows", results)
    return [asdict(row) if is_dataclass(row) and not isinstance(row, type) else row for row in rows]


def rows_in(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows in a JSON file that ``hf-posenc eval`` or ``compare`` wrote, or in all such files of a folder."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    for file in files:
        try:
            rows = read_object(file, LARGEST_FILE).get("rows")
        except (OSError, ValueError):  # a file of another program
            continue
        if not isinstance(rows, list):
            continue
        for row in rows:
            if isinstance(row, Mapping) and row.keys() >= ROW and isinstance(row["value"], (int, float)):
                yield row


ROW = {"scheme", "task", "length", "metric", "value"}
"""Required keys of a row of results."""
