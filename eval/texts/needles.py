"""Needles in a haystack, after RULER.

    intro · filler … "The code of mesodar is 4831957." … filler · question · opening of the answer

Several codes of one key are asked for in the order of the text, codes of several keys in the order of the question.
``depth`` is the depth of one needle, the pinned one; all other needles have random depths.

Hsieh et al. 2024, "RULER", arXiv:2404.06654, section 3. The forms of the task are RULER's; words, codes, sentences and
filler are our own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hf_posenc.eval.texts.haystack import Notes, Supply, coined, depths, filler, identifier, listed, number

INTRO = "Somewhere in these notes things are given codes. Keep every code in mind, you will be asked for some.\n"
NEEDLE = "The code of {key} is {value}."
ONE = "\nWhich code does {key} have? The code of {key} is"
VALUES = "\nWhich {count} codes does {key} have? In the order of the notes, the codes of {key} are"
QUERIES = "\nWhich codes do {keys} have? In this order, the codes of {keys} are"

CODE_KINDS = {"numbers": number, "words": coined, "uuids": identifier}


class Niah(Notes):
    """One set of needles, in a haystack of any size.

    Args:
        depth: depth of the pinned needle.
        queries: number of requested keys.
        codes: number of codes of each of these keys; more than one only for a single key.
        distractors: number of further keys with a code, which are not requested.
        haystack: filler around the needles, one of `HAYSTACKS`, or ``text``.
        code_kind: form of the codes, one of `CODE_KINDS`.
        sentences: sentences of the user's text, for the haystack ``text``.
    """

    intro = INTRO

    def __init__(
        self,
        seed: str,
        depth: float,
        *,
        queries: int = 1,
        codes: int = 1,
        distractors: int = 0,
        haystack: str = "prose",
        code_kind: str = "numbers",
        sentences: Sequence[str] = (),
    ) -> None:
        rng = random.Random(seed)
        keys = Supply(lambda: coined(rng))
        values = keys if code_kind == "words" else Supply(lambda: CODE_KINDS[code_kind](rng))
        others = Supply(lambda: NEEDLE.format(key=next(keys), value=next(values)))
        self.keys = keys.first(queries)
        self.answers = tuple(next(values) for _ in range(queries * codes))
        place = rng.randrange(queries)
        needle_depths = depths(rng, len(self.answers) - 1)
        needle_depths.insert(place, depth)
        if codes > 1:  # codes of one key are asked for in the order of the text
            needle_depths.sort()
        self.pinned = needle_depths.index(depth)
        owners = [key for key in self.keys for _ in range(codes)]
        needles = [NEEDLE.format(key=key, value=code) for key, code in zip(owners, self.answers, strict=True)]
        noise = others.first(distractors)
        self.needles = [*zip(needle_depths, needles, strict=True), *zip(depths(rng, distractors), noise, strict=True)]
        self.filler = filler(haystack, random.Random(f"{seed}-filler"), others, sentences)
        shape = VALUES if codes > 1 else ONE
        if queries > 1:
            shape = QUERIES
        self.question = shape.format(keys=listed(self.keys), key=self.keys[0], count=codes)
