"""Make the plots of the Chinese guide: ``python docs/chinese_pictures.py [NAME …]``; without names, all of them.

Each plot is the English one as SVG, with labels that are translated by ``zh/pictures.json``, where ``#`` stands for a
number. Labels stay text in the reader's own font, so drawing needs no font with Chinese characters.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from tempfile import TemporaryDirectory

from make_pictures import Made, make, picture

FOLDER = Path(__file__).parent / "zh"
TABLE = FOLDER / "pictures.json"
TEXT = re.compile(r"(<text[^>]*>)(.*?)(</text>)", re.DOTALL)
NUMBER = re.compile(r"\d[\d,.]*")
WORD = re.compile(r"[A-Za-z]{2}")
PATH = re.compile(r'(?<= d=")[^"]*')
DECIMALS = re.compile(r"(\.\d{2})\d+")
FONT = "'DejaVu Sans', 'Noto Sans CJK SC', 'Noto Sans SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"


class NoTranslation(KeyError):
    """A label or caption is missing in the table."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{TABLE.name} has no Chinese for the {kind} {text!r}. Add it to {kind!r}s there.")

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Translated:
    """A plot of the Chinese pages.

    Attributes:
        made: the English plot.
        shows: caption and alternative text, in Chinese.
    """

    made: Made
    shows: str

    @property
    def file(self) -> Path:
        """The image file, relative to ``zh``."""
        return Path("pictures") / f"{self.made.name}.svg"


def table() -> dict[str, dict[str, str]]:
    """Captions by name of the plot, and labels by their English text."""
    translations: dict[str, dict[str, str]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return translations


def chinese_picture(name: str) -> Translated:
    """The Chinese plot of a name.

    Raises:
        NoTranslation: the plot has no Chinese caption.
    """
    captions = table()["captions"]
    if name not in captions:
        raise NoTranslation("caption", name)
    return Translated(picture(name), captions[name])


def label(text: str, labels: dict[str, str], names: frozenset[str]) -> str:
    """Translate a label to Chinese; numbers and names of schemes stay.

    Raises:
        NoTranslation: the table does not have the label.
    """
    if text in names or not WORD.search(text):
        return text
    key = NUMBER.sub("#", text)
    if key not in labels:
        raise NoTranslation("label", key)
    numbers = iter(NUMBER.findall(text))
    return re.sub("#", lambda _: next(numbers), labels[key])


def translate(svg: str, labels: dict[str, str], names: frozenset[str]) -> str:
    """Translate the labels of an SVG, and round its coordinates to a hundredth of a point."""

    def in_chinese(match: re.Match[str]) -> str:
        start, text, end = match.groups()
        return start.replace("'DejaVu Sans'", FONT) + escape(label(unescape(text), labels, names), quote=False) + end

    svg = PATH.sub(lambda match: DECIMALS.sub(r"\1", match.group()), svg)
    return TEXT.sub(in_chinese, svg.replace("<svg ", '<svg lang="zh-CN" ', 1))


def make_one(wanted: Translated, labels: dict[str, str], names: frozenset[str]) -> None:
    """Draw a plot and translate it."""
    with TemporaryDirectory() as folder:
        english = Path(folder) / wanted.file.name
        make(wanted.made.words, english)
        chinese = translate(english.read_text(encoding="utf-8"), labels, names)
    (FOLDER / wanted.file).write_text(chinese, encoding="utf-8")


def scheme_names() -> frozenset[str]:
    """Names of schemes, which stay in labels."""
    from hf_posenc.schemes.registry import list_schemes

    return frozenset(record.name for record in list_schemes())


if __name__ == "__main__":
    for each in sys.argv[1:] or table()["captions"]:
        make_one(chinese_picture(each), table()["labels"], scheme_names())
