"""Load the tokenizer of a checkpoint, and correct its length limit for a patched model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import CONFIG_NAME

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.checkpoints.hub import shared_hub_options
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.core.files.hf_errors import explained_errors
from hf_posenc.errors import CheckpointMismatch, MissingPackage, ModelNotFound
from hf_posenc.patching.text_limits import is_cut, is_unstated


def load_tokenizer(name: str, **kwargs: Any) -> Any:
    """Load the tokenizer of a model, without remote code.

    transformers reads the configuration as well, and some families validate it. The config guard of a patched
    checkpoint would fail this, so transformers gets the configuration without the guard. If the tokenizer was saved
    after the model, it has its old limit or none; the limit is raised again.

    Raises:
        PosEncError: the tokenizer cannot be found or read.
    """
    from transformers import AutoTokenizer

    scheme = None
    if (checkpoint := patched_checkpoint(name)) is not None:
        scheme, kwargs["config"] = checkpoint.model_scheme, checkpoint.hf_config()
    with explained_errors(name, part="tokenizer of"):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **kwargs)
    limit = tokenizer.model_max_length
    if scheme is not None and (is_cut(limit, scheme) or is_unstated(limit, scheme)):
        tokenizer.model_max_length = scheme.target_length
    return tokenizer


def patched_checkpoint(name: str) -> Checkpoint | None:
    """The patched checkpoint in the folder ``name``, or None."""
    checkpoint = Checkpoint.open(name) if (Path(name) / CONFIG_NAME).is_file() else None
    return None if checkpoint is None or checkpoint.model_scheme is None else checkpoint


def tokenizer_of(named: ModelName) -> Any:
    """Load the tokenizer of a model, or of its adapter if that has one.

    Raises:
        PosEncError: the tokenizer cannot be found or read.
    """
    if named.tokenizer != named.model:
        return load_tokenizer(named.tokenizer, **shared_hub_options(named.adapter_hub))
    return load_tokenizer(named.tokenizer, **named.hub)


def tokenizer_found(named: ModelName) -> Any | None:
    """The tokenizer of a model, or None.

    Raises:
        CheckpointMismatch: its folder has a ``tokenizer.json``, which cannot be read.
    """
    try:
        return tokenizer_of(named)
    except CheckpointMismatch:
        if (Path(named.tokenizer) / "tokenizer.json").is_file():
            raise
    except (MissingPackage, ModelNotFound):
        pass
    return None
