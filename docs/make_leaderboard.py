"""Write docs/leaderboard.md, docs/leaderboard-retrieval.md and the files beside them from leaderboards that were made:

    hf-posenc leaderboard
    hf-posenc leaderboard --models starter:llama --tasks … --output results/leaderboard-retrieval
    python docs/make_leaderboard.py

Where there is no such folder of results, a page is written again from the committed leaderboard.json.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hf_posenc.insight.leaderboard import Leaderboard, read_leaderboard
from hf_posenc.insight.leaderboard.exports import csv_text, markdown_text, picture_files

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
FIGURES = "leaderboard.json"
HEAD = """# Leaderboard

`hf-posenc leaderboard` ranks schemes on models: effective context length, loss, retrieval, and cost in time and
memory. Its scores are cells of [`compare`](evaluation.md#compare-schemes), kept in the folder of the results, so that
the same command goes on where it was killed and measures only what is new.

```console
$ hf-posenc leaderboard --quick
$ hf-posenc leaderboard --models ./my-model --schemes yarn,rerope,self_extend --lengths 4096,16384 --text book.txt
```

It writes `page.html` (one self-contained page with filters by model, task and kind of scheme, and a picture of
quality against cost), and the same as JSON, CSV, LaTeX and Markdown. Beside every cell, on the page and in the CSV,
stands the command that measures it again. By default all schemes are measured that can be used without training on
the model; the others are listed with the reason. `--schemes` chooses others, and those that need training are marked.

**Who is first.** No scheme is called best by its mean alone. A rank is an interval: every pair of schemes is compared
on the same documents, all pairs of a table are corrected together (Holm), and the rank says how many are surely
better and surely worse. Equal places are the rule where documents are few. In Python:
[](#hf_posenc.insight.leaderboard.leaderboard).

The bundled models below are small and were trained on 256 tokens: their orders of schemes are those of these models.
On more tasks of retrieval, which the bundled Llama can do: [](leaderboard-retrieval.md).
"""
RETRIEVAL = """# Leaderboard of retrieval

Loss says little about what a model finds in a long text. Below, [`hf-posenc leaderboard`](leaderboard.md) ranks
schemes on the bundled Llama by what it [can do within its 256 tokens](starters.md#what-the-llama-can-do): find one code
among several, follow names through a chain of others, answer questions about one document of many, copy strings.

Differences of right and wrong answers have here the interval of Student's t, and not yet the adjusted one that the
command has now (Agresti and Min 2005), which is a little wider and ends at ±100.
"""
FILES = """
The same numbers with all commands: [leaderboard.json]({name}/leaderboard.json),
[leaderboard.csv]({name}/leaderboard.csv). A test draws one of the cells and measures it again. This page is
written by `python docs/make_leaderboard.py`.

"""
PAGES = {"leaderboard": HEAD, "leaderboard-retrieval": RETRIEVAL}


def folder(name: str) -> Path:
    """Where the figures of a page are."""
    return DOCS / name


def page(name: str, board: Leaderboard) -> str:
    """The page in Markdown."""
    return PAGES[name] + FILES.format(name=name) + markdown_text(board, f"{name}/")


def main() -> None:
    """Copy the figures that were made, and write tables, pictures and pages from them."""
    for name in PAGES:
        kept, made = folder(name), RESULTS / name / FIGURES
        board = read_leaderboard(made if made.exists() else kept / FIGURES)
        if made.exists():
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir()
            shutil.copy(made, kept)
        (kept / "leaderboard.csv").write_text(csv_text(board), encoding="utf-8")
        for file, content in picture_files(board).items():
            if file.endswith(".png"):
                (kept / file).write_bytes(content)
        (DOCS / f"{name}.md").write_text(page(name, board), encoding="utf-8")


if __name__ == "__main__":
    main()
