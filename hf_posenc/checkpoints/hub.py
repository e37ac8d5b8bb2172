"""The Hub: what a name there leads to, without waiting where there is no network.

transformers and huggingface_hub retry every file for some twenty seconds. Here the Hub is asked for the two files that
tell a model from an adapter, without retries, and only for what is not in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_NAME

from hf_posenc.core.files.hf_errors import explained_errors, reason_of
from hf_posenc.errors import ModelNotFound, shown
from hf_posenc.patching.peft_sidecar import PEFT_CONFIG

HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
OF_ONE_NAME = ("revision", "subfolder")
"""Options that belong to one name; the others hold for everything that is loaded with it."""


def hub_options(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the Hub among keywords of ``from_pretrained``."""
    return {option: keywords[option] for option in HUB_OPTIONS if option in keywords}


def of_other_names(hub: Mapping[str, Any]) -> dict[str, Any]:
    """The options that hold for the base as well where they were given for an adapter, and vice versa."""
    return {option: value for option, value in hub.items() if option not in OF_ONE_NAME}


def with_hub_options(keywords: Mapping[str, Any], hub: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of ``from_pretrained`` with these options of the Hub in place of their own; none for a local folder."""
    return {**{name: value for name, value in keywords.items() if name not in HUB_OPTIONS}, **hub}


def is_hub_adapter(name: str, hub: Mapping[str, Any]) -> bool:
    """Whether a Hub name is that of a PEFT adapter, and not of a model."""
    from huggingface_hub import file_exists, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    revision, token = hub.get("revision"), hub.get("token")
    with explained_errors(name):
        for file in (CONFIG_NAME, PEFT_CONFIG):
            if isinstance(try_to_load_from_cache(name, file, cache_dir=hub.get("cache_dir"), revision=revision), str):
                return file == PEFT_CONFIG
        if hub.get("local_files_only"):
            return False  # the loader says what is missing
        known = {"revision": revision, "token": token}
        try:
            return not file_exists(name, CONFIG_NAME, **known) and file_exists(name, PEFT_CONFIG, **known)
        except (HfHubHTTPError, HFValidationError):  # what the Hub says
            raise
        except Exception as error:  # of whichever HTTP library this release of huggingface_hub uses
            raise ModelNotFound(
                f"{shown(name)} is no folder here and not in the cache, and the Hub cannot be asked: "
                f"{reason_of(error)}. Check the name; while there is a network, `hf download {name}` fetches it."
            ) from error
