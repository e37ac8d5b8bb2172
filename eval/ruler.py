"""What lm-eval's RULER tasks need before they generate their prompts.

They take the name of a tokenizer and not the object, import packages of lm-eval's extra ``ruler``, download essays and
sentence data, and never end where their shortest prompt is longer than the length. All of that is looked at first.

Hsieh et al. 2024, "RULER", arXiv:2404.06654.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_posenc.errors import MissingPackage
from hf_posenc.eval.errors import LengthTooShort, TaskDataMissing

ESSAYS = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")
QUESTIONS = ("ruler_qa_squad", "ruler_qa_hotpot")
OTHERS = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "ruler_vt", "ruler_cwe", "ruler_fwe")
GROUPS = ("ruler", "longcxt")
ESSAY_DATA = "baber/paul_graham_essays"
SLACK = 1.05
"""Random names and words cost a few tokens more or less."""


def ruler_tasks(names: Iterable[str]) -> list[str]:
    """Those of the names that are RULER's, with its groups written out."""
    every = [*OTHERS, *ESSAYS, *QUESTIONS]
    return list(
        dict.fromkeys(task for name in names for task in (every if name in GROUPS else [name]) if task in every)
    )


def check_ruler(names: Iterable[str], tokenizer: Any, lengths: Sequence[int]) -> None:
    """Refuse what RULER's tasks would fail or hang on.

    Raises:
        MissingPackage: a package is missing.
        TaskDataMissing: data would have to be downloaded, and cannot be.
        LengthTooShort: a length has no room for the shortest prompt of a task.
    """
    tasks = ruler_tasks(names)
    if not tasks:
        return
    try:
        import nltk
        import scipy  # noqa: F401
        import wonderwords  # noqa: F401
        from lm_eval.tasks.ruler import prepare_niah  # downloads sentence data if it can
    except ImportError as error:
        raise MissingPackage(
            f"RULER's tasks need {error.name or 'nltk and wonderwords'}, which is not installed. "
            "pip install 'hf-posenc[ruler]'"
        ) from error
    if missing := [task for task in tasks if task in QUESTIONS and not online()]:
        raise TaskDataMissing(
            f"The questions of {', '.join(missing)} are downloaded at every run, and the network is switched off "
            "(HF_HUB_OFFLINE). Ask those of a local file with posenc_qa_file."
        )
    if missing := [task for task in tasks if task in ESSAYS]:
        check_essays(missing, nltk, prepare_niah)
    for task, least in SHORTEST.items():
        for length in lengths if task in tasks else ():
            if (tokens := int(SLACK * least(tokenizer, length))) > length:
                raise LengthTooShort(
                    f"The shortest prompt of {task} and its answer take {tokens} tokens with this tokenizer, got "
                    f"length {length}. Ask for a longer one, or for posenc_{task.removeprefix('ruler_')}."
                )


def online() -> bool:
    """Whether the Hub's libraries may use the network."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE


def check_essays(tasks: Sequence[str], nltk: Any, prepare_niah: Any) -> None:
    """Load the essays and the sentence data of RULER's haystacks."""
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError as error:
        raise TaskDataMissing(
            f"The essays of {', '.join(tasks)} are divided by nltk's punkt_tab, which is not on this machine. Fetch it "
            "with python -m nltk.downloader punkt_tab, and set NLTK_DATA to its folder."
        ) from error
    try:
        prepare_niah.get_haystack(type_haystack="essay")
    except Exception as error:  # of datasets, huggingface_hub and httpx
        raise TaskDataMissing(
            f"The haystack of {', '.join(tasks)} is {ESSAY_DATA}, which is not on this machine. Fetch it once, with "
            f"network: hf download --repo-type dataset {ESSAY_DATA}. posenc_niah_single and its like need no data."
        ) from error


def shortest_vt(tokenizer: Any, length: int) -> int:
    """Tokens of the shortest prompt of variable tracking, its example and its answer."""
    from lm_eval.tasks.ruler import vt_utils

    example, _ = vt_utils.generate_input_output(5, 1, 4, is_icl=True)
    prompt, answer = vt_utils.generate_input_output(10, 1, 4)
    shot = count(tokenizer, example)
    if SLACK * (shot + 30) > 500:  # of which RULER makes its example
        raise LengthTooShort(
            f"RULER's example of variable tracking takes {shot + 30} tokens with this tokenizer, and RULER gives it "
            "500. Use posenc_vt, or a tokenizer with a larger vocabulary."
        )
    return max(500, shot + 30) + count(tokenizer, prompt + f" {answer}") + 30


def shortest_cwe(tokenizer: Any, length: int) -> int:
    """Tokens of the shortest prompt of common words, its example and its answer."""
    from lm_eval.tasks.ruler import cwe_utils

    example, prompt, answer = cwe_utils.generate_input_output(10, length)
    listed = " ".join(f"{number}. {word}" for number, word in enumerate(answer, 1))
    return count(tokenizer, f"{example}\n{prompt} {listed}") + 120


def shortest_fwe(tokenizer: Any, length: int) -> int:
    """Tokens of the shortest prompt of frequent words; four words need a length of 200."""
    from lm_eval.tasks.ruler import fwe_utils

    return max(200, count(tokenizer, fwe_utils.TEMPLATE)) + length // 16


SHORTEST: dict[str, Callable[[Any, int], int]] = {
    "ruler_vt": shortest_vt, "ruler_cwe": shortest_cwe, "ruler_fwe": shortest_fwe
}  # fmt: skip
"""Tasks that do not end where a prompt does not fit."""


def count(tokenizer: Any, text: str) -> int:
    """Tokens of a text with the special ones."""
    return len(tokenizer(text, verbose=False)["input_ids"])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators that RULER's prompts are drawn from, as lm-eval does at seed 0, and set them back."""
    import numpy

    state, numpy_state = random.getstate(), numpy.random.get_state()
    random.seed(seed)
    numpy.random.seed((1234 + seed) % 2**32)
    try:
        yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)


@contextmanager
def tokenizer_folder(tokenizer: Any) -> Iterator[str]:
    """A folder that holds the tokenizer, for tasks that load one by name.

    RULER loads it with remote code allowed; what could name such code is left out.
    """
    with TemporaryDirectory(prefix="hf-posenc-tokenizer-") as folder:
        tokenizer.save_pretrained(folder)
        file = Path(folder, "tokenizer_config.json")
        config = json.loads(file.read_text(encoding="utf-8"))
        config.pop("auto_map", None)
        file.write_text(json.dumps(config), encoding="utf-8")
        yield folder
