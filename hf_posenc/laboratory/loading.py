"""Where the laboratory models are: ``laboratory:rope`` wherever a model is named.

rope    a decoder; ``examples/train_laboratory_gpu.py`` makes it and others: one size, one start and the same rows in
        the same order, so that they differ in their positional scheme alone; ``train_laboratory.py`` needs no GPU
bert    an encoder that recalls a passkey that is masked whole; ``examples/train_laboratory_bert.py``
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hf_posenc.errors import UnknownStarter, nearest, shown

LaboratoryModel = Literal["rope", "bert"]
FOLDER = Path(__file__).parent
NAMES: tuple[LaboratoryModel, ...] = ("rope", "bert")
PREFIX = "laboratory:"


def laboratory_path(name: LaboratoryModel) -> Path:
    """The folder of a laboratory model; `hf_posenc.from_pretrained` loads it with its scheme.

    Raises:
        UnknownStarter: there is no laboratory model of that name.
    """
    if name not in NAMES:
        raise UnknownStarter(
            f"There is no laboratory model called {shown(name)}.{nearest(name, NAMES)} Choose one of "
            f"{', '.join(NAMES)}; examples/train_laboratory.py trains others."
        )
    return FOLDER / name
