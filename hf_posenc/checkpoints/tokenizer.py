"""The tokenizer that belongs to a checkpoint: loaded, and copied to where the checkpoint goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import CONFIG_NAME

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.checkpoints.hub import of_other_names
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.core.files.hf_errors import explained_errors
from hf_posenc.errors import CheckpointMismatch, MissingPackage, ModelNotFound


def load_tokenizer(name: str, **kwargs: Any) -> Any:
    """Load the tokenizer of a model, without remote code.

    transformers reads the configuration as well, and some families validate it, which the config guard of a patched
    checkpoint does not pass: it gets the configuration behind the guard.

    Args:
        name: folder or Hub name of the model or adapter.
        **kwargs: of ``AutoTokenizer.from_pretrained``.

    Raises:
        PosEncError: the tokenizer cannot be found or read.
    """
    from transformers import AutoTokenizer

    if is_guarded(name):
        kwargs["config"] = Checkpoint.open(name).hf_config()
    with explained_errors(name):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False, **kwargs)


def is_guarded(name: str) -> bool:
    """Whether a name is that of a folder with a patched checkpoint."""
    return (Path(name) / CONFIG_NAME).is_file() and Checkpoint.open(name).model_scheme is not None


def tokenizer_of(named: ModelName, **hub: Any) -> Any:
    """Load the tokenizer of a model that was found by its name.

    Args:
        named: the model, whose adapter may have a tokenizer of its own, or name a revision of the model.
        **hub: the options of the Hub that the model is loaded with.

    Raises:
        PosEncError: the tokenizer cannot be found or read.
    """
    if named.tokenizer != named.model:
        return load_tokenizer(named.tokenizer, **of_other_names(hub))
    revision = {} if named.revision is None else {"revision": named.revision}
    return load_tokenizer(named.tokenizer, **hub | revision)


def copy_tokenizer(named: ModelName, folder: Path, **hub: Any) -> bool:
    """Save the tokenizer of a model into ``folder``, and say whether it has one; arguments as `tokenizer_of`."""
    try:
        tokenizer = tokenizer_of(named, **hub)
    except (CheckpointMismatch, MissingPackage, ModelNotFound):
        return False
    tokenizer.save_pretrained(folder)
    return True
