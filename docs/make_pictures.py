"""Make the plots of the documentation: ``python docs/make_pictures.py [NAME …]``. Each is one command.

Without names, those of the guide; ``schemes`` stands for one plot of every scheme. Existing files are overwritten.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"


@dataclass(frozen=True)
class Made:
    """A plot and the command that makes it.

    Attributes:
        name: what pages call it.
        words: the command, without ``hf-posenc`` and ``--out``.
        shows: what it shows: caption and alternative text.
        inside: name of the file, of a command that writes a folder.
        optional: whether pages leave it out silently where it has not been made.
        ending: of the file.
    """

    name: str
    words: str
    shows: str
    inside: str = ""
    optional: bool = False
    ending: str = "png"

    @property
    def out(self) -> str:
        """What the command writes, relative to the folder of pictures."""
        return self.name.partition("-")[0] if self.inside else f"{self.name}.{self.ending}"

    @property
    def file(self) -> str:
        """The image file, relative to the folder of pictures."""
        return f"{self.out}/{self.inside}.png" if self.inside else self.out

    @property
    def line(self) -> str:
        """The command as a reader types it."""
        return f"hf-posenc {self.words} --out {self.out}"


PROBE = "probe --model starter:llama --scheme yarn --factor 4"
PICTURES = (
    Made(
        "binary",
        "show binary sinusoidal --picture code --length 64 --shape width=16",
        "Position down, channel across: binary digits jump, waves of the same periods change smoothly.",
    ),
    Made(
        "path",
        "show binary sinusoidal --picture path --length 64 --shape width=64",
        "Both codes projected on their two principal directions: one jumps, the other is a smooth line.",
    ),
    Made(
        "sinusoidal",
        "show sinusoidal --picture dimensions --length 200",
        "Single channels of the sinusoidal code: fast, middle and slow.",
    ),
    Made(
        "clock",
        "show sinusoidal --picture clock --position 10",
        "Each pair of channels is like the hand of a clock; together they determine the position.",
    ),
    Made(
        "product",
        "show sinusoidal --picture product --length 200",
        "Inner product of two codes against their distance: it falls in waves, and is symmetric.",
    ),
    Made(
        "alibi",
        "show alibi --picture bias --length 64",
        "ALiBi's bias of each pair: every head has half the slope of the one before.",
    ),
    Made(
        "biases",
        "show alibi kerple sandwich --picture bias_curve --model starter:llama",
        "Biases against distance, head by head. KERPLE as it is initialised.",
    ),
    Made(
        "score",
        "show rope --picture score --length 64 --head 0",
        "Scores of one query and one key at all positions: with RoPE they are constant along each diagonal.",
    ),
    Made(
        "score-curve",
        "show rope abf --picture score_curve --length 512",
        "The same against the distance: it falls overall, in waves; a larger base stretches them.",
    ),
    Made(
        "rope2d",
        "show rope rope_nd --picture grid",
        "The middle patch of an image against all others: positions row by row, and two coordinates.",
    ),
    Made(
        "frequencies",
        "show pi ntk yarn mrrope llama3 --picture frequencies --factor 8",
        "Frequency of every pair before and after a scaling by 8.",
    ),
    Made(
        "remaps",
        "show rerope leaky_rerope self_extend jet_long dca --picture distance_curve --factor 4",
        "The distance that is used for a token, against the true one.",
    ),
    Made(
        "masks",
        "show window sinks lm_infinite --picture visible --factor 2",
        "Visible keys of each query: a window, a window with the first tokens, and the same with capped distances.",
    ),
    Made(
        "probe-distance",
        PROBE,
        "Share of attention weight by distance, one row a head: unpatched, with YaRN, and the change.",
        "distance",
    ),
    Made(
        "probe-heads",
        PROBE,
        "Layer × head: weight at one distance, weight on the first token, and the effect of shuffled positions.",
        "heads",
    ),
    Made(
        "probe-loss",
        PROBE,
        "Loss of the same last tokens against sequence length, and of all tokens by position.",
        "loss",
    ),
    Made(
        "probe-sinks",
        PROBE,
        "Attention weight on the first token in every layer: a dot for each head, a line for the mean.",
        "sinks",
    ),
)
SCHEME = "scheme-"
OF_SCHEMES = {  # schemes whose first plot says little, or needs a model
    "deberta": ("show deberta --model starter:llama", "DeBERTa's bias of each pair, at its initial parameters."),
    "irope": (
        "show rope irope --picture score --layer 3",
        "Every fourth layer of iRoPE has no positions: there all scores are equal.",
    ),
    "llama4_temp": (
        "show llama4_temp --trained-length 8192 --factor 4",
        "The factor of the logits rises by a step every 8,192 tokens.",
    ),
    "mrope": (
        "show mrope mrope:interleaved=true",
        "Score of the middle patch of an image: rows and columns turn slow pairs; interleaved, pairs of all speeds.",
    ),
    "ms_poe": (
        "show rope ms_poe --picture score_curve --head 7",
        "The last head of Ms-PoE divides distances: its scores fall later than RoPE's.",
    ),
    "sink_logits": ("show rope sink_logits --picture score", "The scores are RoPE's: a sink only joins the softmax."),
    "xpos": ("show rope xpos --picture score_curve", "xPos damps RoPE's waves, the more the greater the distance."),
    "none": ("show rope none --picture score", "RoPE's scores fall with distance; without positions all are equal."),
    "drope": ("show rope drope --picture score", "RoPE's scores, and those after it was dropped: all are equal."),
}


def picture(name: str) -> Made:
    """A plot by name.

    Raises:
        KeyError: there is none.
    """
    if name.startswith(SCHEME):
        scheme = name.removeprefix(SCHEME)
        words, shows = OF_SCHEMES.get(scheme, (f"show {scheme}", f"What {scheme} does."))
        return Made(name, words, shows, optional=True)
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
    """The plots of some names."""
    from hf_posenc.schemes.registry import list_schemes

    every = [f"{SCHEME}{record.name}" for record in list_schemes() if not record.recipe]
    if not names:
        return list(PICTURES)
    return [picture(one) for name in names for one in (every if name == "schemes" else [name])]


def make_all(wanted: list[Made]) -> None:
    """Make plots, each command once; an optional one may be refused."""
    for words, out, optional in dict.fromkeys((made.words, made.out, made.optional) for made in wanted):
        try:
            make(words, FOLDER / out)
        except SystemExit:
            if not optional:
                raise


if __name__ == "__main__":
    make_all(chosen(sys.argv[1:]))
