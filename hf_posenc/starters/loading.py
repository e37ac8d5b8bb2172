"""Load the three small trained models of the package (starters); their trained length is 256 tokens.

llama   text, needles, chains of names, questions, copies; ``examples/train_laboratory_gpu.py``, which also makes models
        that differ from it in their positional scheme alone
gpt2    text and passkeys; ``examples/train_starters.py``
bert    text, and passkeys that are masked whole; ``train_starters.py``, then ``train_bert_passkeys.py``
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import UnknownStarter, nearest, shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Starter = Literal["llama", "gpt2", "bert"]
FOLDER = Path(__file__).parent
NAMES: tuple[Starter, ...] = ("llama", "gpt2", "bert")
PREFIX = "starter:"
"""Prefix of starters in names of models, as in ``starter:llama``."""
DTYPE = "float32"
"""Starters are stored in half precision and run in this one."""


def starter_path(name: Starter) -> Path:
    """Return the folder of a starter.

    Raises:
        UnknownStarter: there is no starter of that name.
    """
    if name not in NAMES:
        raise UnknownStarter(
            f"There is no starter called {shown(name)}.{nearest(name, NAMES)} Choose one of {', '.join(NAMES)}."
        )
    return FOLDER / name


@explained_imports()
def load_starter(name: Starter) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a starter in float32 and evaluation mode, and its tokenizer.

    Raises:
        UnknownStarter: there is no starter of that name.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    path = starter_path(name)
    auto = AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM
    model = auto.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    return model.eval(), AutoTokenizer.from_pretrained(path, local_files_only=True)
