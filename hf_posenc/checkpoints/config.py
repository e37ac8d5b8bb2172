"""Read a checkpoint's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from hf_posenc.checkpoints.remote_code import check_no_remote_code
from hf_posenc.patching.stored.config_guard import (
    GUARD_KEY,
    unguard,
)
from hf_posenc.patching.stored.peft_sidecar import base_of_adapter

HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def config_of(name_or_path: str, hf_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint's configuration, or of the one the caller passes.

    Raises:
        CheckpointMismatch: its guard is damaged, or it names code to be fetched.
    """
    given = hf_kwargs.get("config")
    if isinstance(given, PreTrainedConfig):
        return {"model_type": given.model_type, **vars(given)}
    hub = {name: hf_kwargs[name] for name in HUB if name in hf_kwargs}
    content = PreTrainedConfig.get_config_dict(name_or_path if given is None else given, **hub)[0]
    check_no_remote_code(content, name_or_path, hf_kwargs)
    return unguard(content, name_or_path)


def read_config(name_or_path: str, **hf_kwargs: Any) -> PreTrainedConfig:
    """``AutoConfig.from_pretrained``, past the guard of a checkpoint that carries a scheme; takes what that takes.

    Args:
        name_or_path: of a model, or of a PEFT adapter, whose base then has the configuration.
        **hf_kwargs: of ``AutoConfig.from_pretrained``.
    """
    name_or_path = base_of_adapter(name_or_path) or name_or_path
    hub = {name: hf_kwargs[name] for name in HUB if name in hf_kwargs}
    if hf_kwargs.get("gguf_file") is None:
        content = PreTrainedConfig.get_config_dict(name_or_path, **hub)[0]
        if GUARD_KEY in content:
            content = unguard(content, name_or_path)
            return CONFIG_MAPPING[content["model_type"]].from_dict(content)
    return AutoConfig.from_pretrained(name_or_path, **hf_kwargs)
