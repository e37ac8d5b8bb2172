"""Read the content of a checkpoint's ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from hf_posenc.checkpoints.hub import hub_options
from hf_posenc.checkpoints.remote_code import check_no_remote_code
from hf_posenc.patching.stored.config_guard import unguard


def config_content(name: str, hf_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a model's configuration, or of the one the caller passes, without the config guard.

    Args:
        name: folder or Hub name of the model.
        hf_kwargs: keywords of ``from_pretrained``; ``config`` and those of the Hub are used.

    Raises:
        OSError: it cannot be found.
        CheckpointMismatch: its config guard is damaged, or it names code to be fetched.
    """
    given = hf_kwargs.get("config")
    if isinstance(given, PreTrainedConfig):
        return {"model_type": given.model_type, **vars(given)}
    content = PreTrainedConfig.get_config_dict(name if given is None else given, **hub_options(hf_kwargs))[0]
    check_no_remote_code(content, name, hf_kwargs)
    return unguard(content, name)
