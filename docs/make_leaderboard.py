"""Write docs/leaderboard.md and the files beside it from a leaderboard that was made:

    hf-posenc leaderboard
    python docs/make_leaderboard.py [FOLDER]

FOLDER is where the first command wrote, by default results/leaderboard; without such a folder the page is written again
from the committed docs/leaderboard/leaderboard.json.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from hf_posenc.insight.leaderboard import Leaderboard, read_leaderboard
from hf_posenc.insight.leaderboard.exports import markdown_text

DOCS = Path(__file__).parent
PAGE, FOLDER = DOCS / "leaderboard.md", DOCS / "leaderboard"
KEPT = ("leaderboard.json", "leaderboard.csv", "pareto_*.png")
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
The same numbers with all commands: [leaderboard.json](leaderboard/leaderboard.json),
[leaderboard.csv](leaderboard/leaderboard.csv). A test draws one of the cells and measures it again. This page is
written by `python docs/make_leaderboard.py`.

"""


def page(board: Leaderboard) -> str:
    """The page in Markdown."""
    return HEAD + markdown_text(board, "leaderboard/")


def main() -> None:
    """Copy what was made, and write the page."""
    made = Path(sys.argv[1] if len(sys.argv) > 1 else "results/leaderboard")
    if made.is_dir():
        FOLDER.mkdir(exist_ok=True)
        for old in FOLDER.iterdir():
            old.unlink()
        for pattern in KEPT:
            for file in made.glob(pattern):
                shutil.copy(file, FOLDER)
    PAGE.write_text(page(read_leaderboard(FOLDER / "leaderboard.json")), encoding="utf-8")


if __name__ == "__main__":
    main()
