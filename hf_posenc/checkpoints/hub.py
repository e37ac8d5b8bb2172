"""Find out whether a Hub name is a model or a PEFT adapter, without a long wait if there is no network.

transformers and huggingface_hub retry every file for about twenty seconds. Here the Hub is asked only for the two files
that distinguish a model from an adapter, without retries. Files in the cache need no request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_NAME

from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.errors import ModelNotFound, shown
from hf_posenc.patching.peft_sidecar import PEFT_CONFIG

HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
OF_ONE_NAME = ("revision", "subfolder")
"""Options that apply to one name only. All others apply to the base and to the adapter."""


def hub_options(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the Hub among the keywords of ``from_pretrained``."""
    return {option: keywords[option] for option in HUB_OPTIONS if option in keywords}


def shared_hub_options(hub: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the Hub that were given for an adapter and apply to its base too, or vice versa."""
    return {option: value for option, value in hub.items() if option not in OF_ONE_NAME}


def with_hub_options(keywords: Mapping[str, Any], hub: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of ``from_pretrained`` with their options of the Hub replaced by ``hub``."""
    return {**{name: value for name, value in keywords.items() if name not in HUB_OPTIONS}, **hub}


def is_hub_adapter(name: str, hub: Mapping[str, Any]) -> bool:
    """Whether a Hub name leads to a PEFT adapter, and not to a model.

    Raises:
        ModelNotFound: the name is not valid, or the Hub cannot be asked.
    """
    from huggingface_hub import file_exists, try_to_load_from_cache

    options = {"revision": hub.get("revision"), "token": hub.get("token")}
    try:
        for file in (CONFIG_NAME, PEFT_CONFIG):
            cached = try_to_load_from_cache(name, file, cache_dir=hub.get("cache_dir"), revision=options["revision"])
            if isinstance(cached, str):
                return file == PEFT_CONFIG
        if hub.get("local_files_only"):
            return False  # the loader reports the missing files
        return not file_exists(name, CONFIG_NAME, **options) and file_exists(name, PEFT_CONFIG, **options)
    except Exception as error:  # of huggingface_hub, or of its HTTP library, which differs between its releases
        raise ModelNotFound(
            f"{shown(name)} is no folder here and not in the cache, and the Hub cannot be asked: "
            f"{reason_of(error)}. Check the name, or run `hf download {name}` when there is a network."
        ) from error
