"""Read the ``adapter_config.json`` of a PEFT adapter: without its config guard, without code, with known keys only."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hf_posenc.core.files.atomic import write_json
from hf_posenc.errors import PeftAdapterMismatch, nearest, shown
from hf_posenc.patching.stored.peft_sidecar import PEFT_CONFIG, read_json, unguard_adapter_config

if TYPE_CHECKING:
    from peft import PeftConfig


def read_peft_config(folder: Path) -> PeftConfig:
    """The configuration of the adapter in ``folder``.

    Raises:
        PeftAdapterMismatch: it cannot be read, has unknown keys, or names a module that PEFT would import.
    """
    from peft import PeftConfig

    config = unguard_adapter_config(read_json(folder / PEFT_CONFIG), str(folder / PEFT_CONFIG))
    mapping = config.get("auto_mapping") or {}
    library = mapping.get("parent_library", "transformers") if isinstance(mapping, Mapping) else mapping
    if str(library).partition(".")[0] != "transformers" or config.get("megatron_core") not in (None, "megatron.core"):
        raise PeftAdapterMismatch(
            f"{folder / PEFT_CONFIG} names a module to import. Remove that, or load it with PEFT itself."
        )
    config = drop_unset_unknown_keys(config, str(folder / PEFT_CONFIG))
    with TemporaryDirectory() as plain:  # PEFT reads configurations from files only
        write_json(Path(plain) / PEFT_CONFIG, config)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Unexpected keyword", UserWarning)  # unknown keys
                return PeftConfig.from_pretrained(plain)
        except Exception as error:  # PEFT checks little, and fails with whatever it meets
            raise PeftAdapterMismatch(
                f"{folder / PEFT_CONFIG} cannot be read: {type(error).__name__} {shown(str(error))}. "
                "Copy or save the adapter again."
            ) from error


def drop_unset_unknown_keys(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A configuration without keys that this PEFT does not know and that ask for nothing.

    PEFT adds options from release to release, each off by default, and writes all of them.

    Raises:
        PeftAdapterMismatch: an unknown key asks for something, or the kind of adapter is unknown.
    """
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PeftConfig

    kind, kinds = config.get("peft_type"), PEFT_TYPE_TO_CONFIG_MAPPING
    advice = "Correct it, or update PEFT if a later one wrote it: pip install -U peft."
    if not isinstance(kind, str) or kind not in kinds:
        names = [str(one.value) for one in kinds]
        close = nearest(kind, names)  # type: ignore[arg-type]
        raise PeftAdapterMismatch(f"{where} has the kind {shown(kind)}, which is none of this PEFT's.{close} {advice}")
    known = {field.name for cls in (kinds[kind], PeftConfig) for field in fields(cls)}
    for name in config.keys() - known:
        if config[name] not in (None, False, "", [], {}):
            raise PeftAdapterMismatch(
                f"{where} has the key {shown(name)}, which this PEFT does not know.{nearest(name, known)} {advice}"
            )
    return {name: value for name, value in config.items() if name in known}
