"""Recognise adapters that were trained under a scheme among all those that PEFT is asked to load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_posenc.checkpoints.adapter_folder import AdapterFolder
from hf_posenc.checkpoints.hub import hub_options
from hf_posenc.core.files.json_file import read_object
from hf_posenc.patching.stored.config_guard import GUARD_KEY
from hf_posenc.patching.stored.peft_sidecar import PEFT_CONFIG, SIDECAR


def scheme_adapter(name: str | os.PathLike[str], hub: Mapping[str, Any]) -> AdapterFolder | None:
    """The adapter of that name if it was trained under a scheme; None for any other, of which PEFT says what is wrong.

    Args:
        name: folder or Hub name.
        hub: keywords of the call that loads it, of which those of the Hub are read (such as ``revision``).

    Raises:
        PeftAdapterMismatch: it was trained under a scheme, and its sidecar is damaged or missing.
    """
    options = {key: value for key, value in hub_options(hub).items() if value and key not in ("proxies", "subfolder")}
    subfolder = hub.get("subfolder") or ""
    folder = Path(name)
    try:
        if not folder.is_dir():
            from huggingface_hub import hf_hub_download

            folder = Path(hf_hub_download(str(name), PEFT_CONFIG, subfolder=subfolder or None, **options)).parent
        else:
            folder = folder / subfolder
        guarded = GUARD_KEY in read_object(folder / PEFT_CONFIG)
    except (OSError, ValueError):
        return None
    if not guarded and not (folder / SIDECAR).exists():
        return None
    return AdapterFolder.open(name, **options, subfolder=subfolder)
