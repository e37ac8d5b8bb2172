"""Make the plots of the documentation, each with one command: ``python docs/make_pictures.py [NAME …]``.

Without names, the plots of the guide are made; ``schemes`` stands for one plot of every scheme. Existing files are
overwritten.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"


@dataclass(frozen=True)
class Made:
    """A plot and the command that makes it.

    Attributes:
        name: name of the plot in pages.
        words: the command, without ``hf-posenc`` and ``--out``.
        shows: caption; empty for the default plot of a scheme.
        inside: name of the file, if the command writes a folder.
        optional: whether pages silently leave the plot out if its file is missing.
        ending: extension of the file.
    """

    name: str
    words: str
    shows: str
    inside: str = ""
    optional: bool = False
    ending: str = "png"

    @property
    def out(self) -> str:
        """File or folder that the command writes, relative to the folder of pictures."""
        return self.name.partition("-")[0] if self.inside else f"{self.name}.{self.ending}"

    @property
    def file(self) -> str:
        """The image file, relative to the folder of pictures."""
        return f"{self.out}/{self.inside}.png" if self.inside else self.out

    @property
    def caption(self) -> str:
        """Caption and alternative text."""
        return self.shows or caption(self.name.removeprefix(SCHEME))

    @property
    def line(self) -> str:
        """The command as a reader types it."""
        return f"hf-posenc {self.words} --out {self.out}"


PROBE = "probe --model starter:llama --scheme yarn --factor 4"
PICTURES = (
    Made(
        "binary",
        "show binary sinusoidal --picture code --length 64 --set width=16",
        "Position down, channel across, one scale: binary digits jump, waves change smoothly.",
    ),
    Made(
        "path",
        "show binary sinusoidal --picture path --length 64 --set width=64 --import examples/guide_plots.py",
        "Codes on their first two principal components, each at its own scale: one path jumps, the other is smooth.",
    ),
    Made(
        "sinusoidal",
        "show sinusoidal --picture dimensions --length 100 --import examples/guide_plots.py",
        "Three channels of the sinusoidal code, from −1 to 1: fast, middle and slow.",
    ),
    Made(
        "clock",
        "show sinusoidal --picture clock --position 10",
        "Hands of eight pairs at position 10, from fast to slow; dots are the six positions before.",
    ),
    Made(
        "product",
        "show sinusoidal --picture product --length 200 --import examples/guide_plots.py",
        "Inner product of two codes by their distance, 1 at zero: it falls in waves, and is symmetric.",
    ),
    Made(
        "alibi",
        "show alibi --picture bias --length 64",
        "ALiBi's bias for each query and key, all heads on one scale: each head has half the slope of the one before.",
    ),
    Made(
        "biases",
        "show alibi kerple sandwich --picture bias_curve --model starter:llama",
        "Biases by distance, one line for each head, each panel on its own scale. KERPLE is shown before training.",
    ),
    Made(
        "score",
        "show rope --picture score --length 64 --head 0",
        "Score of one query and key by their positions, at most 1: with RoPE it is constant along each diagonal.",
    ),
    Made(
        "score-curve",
        "show rope abf --picture score_curve --length 512",
        "The same score by distance: it falls in waves; with a larger base (abf) it falls later.",
    ),
    Made(
        "rope2d",
        "show rope rope_nd --picture grid --import examples/guide_plots.py",
        "Scores of the middle patch (×) on one scale: numbered row by row (left), and with two coordinates (right).",
    ),
    Made(
        "frequencies",
        "show pi ntk yarn mrrope llama3 --picture frequencies --factor 8",
        "Frequency of every pair before (grey) and after (blue) a scaling by 8, on a logarithmic scale. Below the "
        "dashed line, a pair completes no turn within the trained length.",
    ),
    Made(
        "remaps",
        "show rerope leaky_rerope self_extend jet_long dca --picture distance_curve --factor 4",
        "Distance in use for each true distance, from the last token, in tokens: all stay within the trained length.",
    ),
    Made(
        "masks",
        "show window sinks lm_infinite --picture visible --factor 2",
        "Visible keys of each query: a window; with the first four tokens; with the first ten at a capped distance.",
    ),
    Made(
        "probe-distance",
        PROBE,
        "Share of attention weight by distance, one row per head: unpatched and YaRN on one scale, and the change.",
        "distance",
    ),
    Made(
        "probe-heads",
        PROBE,
        "Layer × head, one scale per bar: largest weight at one distance; effect of shuffled positions.",
        "heads",
    ),
)
SCHEME = "scheme-"
OF_KINDS = {
    "bias": "Bias that each head adds to the score of a query and a key; white is zero, grey is masked.",
    "clock": "Pairs of channels as clock hands at position 6; dots are the positions before.",
    "code": "Code of every position; white is zero.",
    "distance": "Distance in use between each query and key; grey is masked.",
    "frequencies": "Frequency of every pair of channels before and after, logarithmic scale. Below the dashed line, "
    "a pair completes no turn within the trained length.",
    "places": "Positions that the tokens of three texts get in training.",
    "temperature": "Factor of all scores of a query, by its position.",
    "visible": "Keys that each query attends to; grey is masked.",
}
BEFORE_TRAINING = " Parameters are shown before training."
OF_SCHEMES = {  # schemes whose first plot says little, or needs a model
    "deberta": ("show deberta --model starter:llama", "DeBERTa's bias for each query and key, before training."),
    "irope": (
        "show rope irope --picture score --layer 3",
        "Every fourth layer of iRoPE has no positions: there all scores are equal.",
    ),
    "llama4_temp": (
        "show llama4_temp --trained-length 8192 --factor 4",
        "The factor of all scores of a query rises by a step every 8,192 tokens.",
    ),
    "mrope": (
        "show mrope mrope:interleaved=true --picture grid --import examples/guide_plots.py",
        "Score of the middle patch (×), one scale: coordinates rotate slow pairs; interleaved, pairs of all speeds.",
    ),
    "rope_nd": (
        "show rope_nd --picture grid --import examples/guide_plots.py",
        "Score of the middle patch of an image (×) with all others.",
    ),
    "cope": ("show cope", "CoPE's table is zero before training: no bias yet."),
    "proportional": ("show proportional --factor 1", "A quarter of the pairs, the slowest, is not rotated."),
    "resonance": (
        "show rope resonance --picture clock --channels 0,1,2,3",
        "RoPE's first pair turns in 6.3 tokens, Resonance's in 6: its angles repeat exactly.",
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
    """The plot with a name.

    Raises:
        KeyError: there is no such plot.
    """
    if name.startswith(SCHEME):
        scheme = name.removeprefix(SCHEME)
        words, shows = OF_SCHEMES.get(scheme, (f"show {scheme}", ""))
        return Made(name, words, shows, optional=True)
    return {made.name: made for made in PICTURES}[name]


def caption(scheme: str) -> str:
    """Caption of the default plot of a scheme."""
    from hf_posenc.insight.plots.compose import plots_of, request_of
    from hf_posenc.schemes.registry import scheme_record

    kind = plots_of(request_of(scheme))[0].name
    return OF_KINDS[kind] + BEFORE_TRAINING * scheme_record(scheme).learned


def make(words: str, out: Path) -> None:
    """Run a command in this process."""
    from hf_posenc.cli import main

    out.parent.mkdir(exist_ok=True)
    if out.is_dir():  # in a fresh clone the folder lacks its numbers, and the command would refuse it
        shutil.rmtree(out)
    try:
        main([*shlex.split(words), "--out", str(out)])
    except SystemExit as end:
        if end.code:
            raise


def chosen(names: list[str]) -> list[Made]:
    """The plots that the command line names."""
    from hf_posenc.schemes.registry import list_schemes

    every = [f"{SCHEME}{record.name}" for record in list_schemes() if not record.recipe]
    if not names:
        return list(PICTURES)
    return [picture(one) for name in names for one in (every if name == "schemes" else [name])]


def make_all(wanted: list[Made]) -> None:
    """Make plots, running each command once; the command of an optional plot may fail."""
    for words, out, optional in dict.fromkeys((made.words, made.out, made.optional) for made in wanted):
        try:
            make(words, FOLDER / out)
        except SystemExit:
            if not optional:
                raise


if __name__ == "__main__":
    make_all(chosen(sys.argv[1:]))
