"""Make the pictures of the documentation: ``python docs/make_pictures.py [NAME …]``. Each is one command.

Without names, those of the guide; ``schemes`` stands for one picture of every scheme. What exists is made again.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"


@dataclass(frozen=True)
class Made:
    """A picture.

    Attributes:
        name: what pages call it.
        words: the command, without ``hf-posenc`` and ``--out``.
        shows: what it shows, for the caption and for those who do not see it.
        inside: which file, of a command that writes a folder.
        optional: whether a page does without it, and without a word, where it has not been made.
    """

    name: str
    words: str
    shows: str
    inside: str = ""
    optional: bool = False

    @property
    def out(self) -> str:
        """What the command writes, below the folder of pictures."""
        return self.name.partition("-")[0] if self.inside else f"{self.name}.png"

    @property
    def file(self) -> str:
        """Where the picture is, likewise."""
        return f"{self.out}/{self.inside}.png" if self.inside else self.out

    @property
    def line(self) -> str:
        """The command as a reader types it."""
        return f"hf-posenc {self.alt_text} --out {self.out}"


PROBE = "probe --model starter:llama --scheme yarn --factor 4"
PICTURES = (
    Made(
        "binary",
        "show binary sinusoidal --picture code --length 64 --width 16",
        "Position down, channel across: the digits of a number jump, and waves of such periods turn smoothly.",
    ),
    Made(
        "path",
        "show binary sinusoidal --picture path --length 64 --width 64",
        "Both codes in the plane of their two widest directions: one jumps about, the other is a smooth line.",
    ),
    Made(
        "sinusoidal",
        "show sinusoidal --picture dimensions --length 200",
        "Single channels of the sinusoidal code: fast, middle and slow.",
    ),
    Made(
        "clock",
        "show sinusoidal --picture clock --position 10",
        "Each pair of channels is the hand of a clock; together they tell the time.",
    ),
    Made(
        "product",
        "show sinusoidal --picture product --length 200",
        "Inner product of two codes against their distance: it falls in waves, and is the same on both sides.",
    ),
    Made("alibi", "show alibi --picture bias --length 64", "ALiBi's bias of each pair, head by head."),
    Made(
        "biases",
        "show alibi kerple sandwich --picture bias_curve --model starter:llama",
        "Biases against distance, head by head. KERPLE is as it starts.",
    ),
    Made(
        "score",
        "show rope --picture score --length 64 --head 0",
        "Scores of one query and key at all places: with RoPE they have one value along each diagonal.",
    ),
    Made(
        "score-curve",
        "show rope abf --picture score_curve --length 512",
        "The same against the distance: it falls on the whole, in waves; a larger base stretches them.",
    ),
    Made(
        "rope2d",
        "show rope rope_nd --picture grid",
        "The middle patch of an image against all others: rows read one after the other, and two coordinates.",
    ),
    Made(
        "frequencies",
        "show pi ntk yarn llama3 --picture frequencies --factor 8",
        "Frequency of every pair before and after a scaling by 8.",
    ),
    Made(
        "remaps",
        "show rerope leaky_rerope self_extend dca --picture distance_curve --factor 4",
        "The distance that a far token is given, against its true one.",
    ),
    Made(
        "masks",
        "show window sinks lm_infinite --picture visible --factor 2",
        "Who sees whom: a window, a window with the first tokens, and the same with capped distances.",
    ),
    Made(
        "probe-distance",
        PROBE,
        "Share of weight by distance, a row a head: as it comes, with YaRN, and the change.",
        "distance",
    ),
    Made(
        "probe-heads",
        PROBE,
        "Layer × head: weight at one distance, on the first token, and what shuffled positions change.",
        "heads",
    ),
    Made("probe-loss", PROBE, "Loss of the same last tokens against length, and of all tokens by place.", "loss"),
    Made("probe-sinks", PROBE, "Weight on the first token in every layer: a dot a head, a line for the mean.", "sinks"),
)
SCHEME = "scheme-"


def picture(name: str) -> Made:
    """A picture by name.

    Raises:
        KeyError: there is none.
    """
    if name.startswith(SCHEME):
        return Made(name, f"show {name.removeprefix(SCHEME)}", f"What {name.removeprefix(SCHEME)} does.", optional=True)
    return {made.name: made for made in PICTURES}[name]


def make(words: str, out: Path) -> None:
    """Run a command in this process."""
    from hf_posenc.cli import main

    out.parent.mkdir(exist_ok=True)
    try:
        main([*shlex.split(words), "--out", str(out)])
    except SystemExit as end:
        if end.code:
            raise


def chosen(names: list[str]) -> list[Made]:
    """The pictures that are asked for."""
    from hf_posenc.schemes.registry import list_schemes

    every = [f"{SCHEME}{record.name}" for record in list_schemes() if not record.recipe]
    if not names:
        return list(PICTURES)
    return [picture(one) for name in names for one in (every if name == "schemes" else [name])]


def make_all(wanted: list[Made]) -> None:
    """Make pictures, each command once; what a page does without may be refused."""
    for words, out, optional in dict.fromkeys((made.alt_text, made.out, made.optional) for made in wanted):
        try:
            make(words, FOLDER / out)
        except SystemExit:
            if not optional:
                raise


if __name__ == "__main__":
    make_all(chosen(sys.argv[1:]))
