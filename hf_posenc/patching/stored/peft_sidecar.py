"""What stands beside a PEFT adapter: the scheme it was trained under.

``position_scheme.json`` is the block of `hf_posenc.patching.stored.scheme_block`. Where the scheme has learned
parameters that PEFT does not save (it saves what is in ``modules_to_save``), ``position_scheme.safetensors`` holds
them. The JSON is written last and names the digest of the other and its own, so that a save cut short and a flipped
bit are noticed.

PEFT would load such an adapter on any base, patched or not, and compute something else. In ``adapter_config.json`` the
kind of adapter is therefore a sentence that says what to do; what stood there is kept under ``position_scheme_guard``.

All three are written by the adapter's own configuration, whose ``save_pretrained`` every way of saving calls: PEFT's,
transformers', `Trainer`'s.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from hf_posenc.core.files.atomic import write_bytes, write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.core.files.paths import checked_name
from hf_posenc.errors import (
    CheckpointMismatch,
    ModelNotFound,
    PeftAdapterMismatch,
    shown,
)
from hf_posenc.patching.state import base_model_of, is_patched
from hf_posenc.patching.stored.config_guard import GUARD_KEY
from hf_posenc.patching.stored.scheme_block import SchemeConfig

SIDECAR, PARAMETERS, PEFT_CONFIG = "position_scheme.json", "position_scheme.safetensors", "adapter_config.json"
DIGEST, OWN_DIGEST = "parameters_sha256", "sha256"
BASE_KEY = "posenc_base"  # of a PEFT configuration: whose scheme it writes
TYPE_KEY = "peft_type"
GUARD_TEXT = (
    "{kind} on positions of the package hf_posenc: use hf_posenc.load_peft_adapter or hf_posenc.from_pretrained"
)


def read_sidecar(folder: str | os.PathLike[str]) -> SchemeConfig | None:
    """The scheme an adapter was trained under; None where it has no sidecar.

    Raises:
        PeftAdapterMismatch: the sidecar is damaged, lost, not as it was written, or of a scheme that does not exist
            here.
    """
    file = local_folder(folder) / SIDECAR
    if not file.exists():
        check_sidecar_not_lost(file.parent)
        return None
    content = read_json(file)
    told = content.pop(OWN_DIGEST, None)
    actual = digest_of(content)
    content.pop(DIGEST, None)
    try:
        block = SchemeConfig.read(content, str(file))
    except CheckpointMismatch as error:
        raise PeftAdapterMismatch(str(error)) from error
    if told not in (None, actual):
        raise PeftAdapterMismatch(
            f"{file} is not as it was written: its {OWN_DIGEST} is that of another content. "
            "Copy or save the adapter again."
        )
    return block


def check_sidecar_not_lost(folder: Path) -> None:
    """Refuse an adapter that was trained under a scheme and has lost its sidecar.

    Raises:
        PeftAdapterMismatch: it is one, as its guard or the learned positions beside it say.
    """
    config = folder / PEFT_CONFIG
    if (config.is_file() and GUARD_KEY in read_json(config)) or (folder / PARAMETERS).exists():
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained under a position scheme, and its {SIDECAR} is missing. "
            "Copy the whole folder, or save the adapter again."
        )


def digest_of(content: Mapping[str, Any]) -> str:
    """Of what a sidecar says, however it is spaced."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_sidecar_on_save(base: nn.Module, peft_configs: Mapping[str, Any]) -> None:
    """Make these PEFT configurations write the scheme of ``base`` wherever they are saved."""
    for config in peft_configs.values():
        config.__class__ = sidecar_writing_class(config.__class__)
        config.__dict__[BASE_KEY] = weakref.ref(base)


@lru_cache(maxsize=64)
def sidecar_writing_class(cls: Any) -> Any:
    """A class of PEFT configurations that write a scheme, too; ``cls`` itself where it does."""
    if vars(cls).get(BASE_KEY):
        return cls

    def save_pretrained(self: Any, save_directory: str, **kwargs: Any) -> None:
        """PEFT's, and beside it the scheme of the base."""
        cls.save_pretrained(self, save_directory, **kwargs)
        base = self.__dict__[BASE_KEY]()
        if base is not None:
            write_sidecar(base, Path(save_directory))
            if is_patched(base):
                write_json(
                    Path(save_directory) / PEFT_CONFIG,
                    guard_adapter_config(read_json(Path(save_directory) / PEFT_CONFIG)),
                )

    def reduced(self: Any, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles name PEFT's class, and carry nothing until they are part of a model."""
        state = {name: value for name, value in self.__dict__.items() if name != BASE_KEY}
        return cls.__new__, (cls,), state

    place = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    own = {"save_pretrained": save_pretrained, "__reduce_ex__": reduced, BASE_KEY: True}
    return type(cls.__name__, (cls,), {**own, **place})


def guard_adapter_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of an ``adapter_config.json`` that only this package can load."""
    if GUARD_KEY in content:
        return dict(content)
    kind = content.get(TYPE_KEY)
    return {**content, TYPE_KEY: GUARD_TEXT.format(kind=kind), GUARD_KEY: {TYPE_KEY: kind}}


def unguard_adapter_config(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What `guard_adapter_config` was given.

    Raises:
        PeftAdapterMismatch: the guard is damaged.
    """
    plain, kept = {name: value for name, value in content.items() if name != GUARD_KEY}, content.get(GUARD_KEY)
    if kept is None:
        return plain
    if not isinstance(kept, Mapping) or kept.keys() != {TYPE_KEY} or not isinstance(kept[TYPE_KEY], str):
        raise PeftAdapterMismatch(
            f"The {GUARD_KEY} of {where} cannot be read: it is {shown(kept)}. Copy or save the adapter again."
        )
    return {**plain, **kept}


def write_sidecar(model: nn.Module, folder: Path) -> None:
    """Write scheme and loose parameters of ``model``; for a plain model, remove those of an earlier save."""
    block = SchemeConfig.of_model(model)
    if block is None:
        (folder / SIDECAR).unlink(missing_ok=True)
        (folder / PARAMETERS).unlink(missing_ok=True)
        return
    content = block.to_json()
    if parameters := position_parameters(model):
        data = save({name: p.detach().cpu().contiguous() for name, p in parameters.items()})
        write_bytes(folder / PARAMETERS, data)
        content[DIGEST] = hashlib.sha256(data).hexdigest()
    write_json(folder / SIDECAR, content | {OWN_DIGEST: digest_of(content)})


def read_position_parameters(folder: Path) -> dict[str, Tensor]:
    """The loose parameters in ``folder``; empty where there are none.

    Raises:
        PeftAdapterMismatch: the file is missing or damaged.
    """
    digest = read_json(folder / SIDECAR).get(DIGEST) if (folder / SIDECAR).exists() else None
    if digest is None:
        return {}
    data = (folder / PARAMETERS).read_bytes() if (folder / PARAMETERS).is_file() else b""
    if hashlib.sha256(data).hexdigest() != digest:
        raise PeftAdapterMismatch(
            f"{folder / PARAMETERS} is not what {SIDECAR} describes. Copy or save the adapter again."
        )
    try:
        return load(data)
    except SafetensorError as error:
        raise PeftAdapterMismatch(
            f"{folder / PARAMETERS} cannot be read: {error}. Copy or save the adapter again."
        ) from error


def load_position_parameters(model: nn.Module, saved: Mapping[str, Tensor], folder: Path) -> None:
    """Give ``model`` its loose parameters.

    Raises:
        PeftAdapterMismatch: it has other parameters than ``saved``.
    """
    live = position_parameters(model)
    odd = sorted(saved.keys() ^ live.keys()) or [name for name in saved if saved[name].shape != live[name].shape]
    if odd:
        raise PeftAdapterMismatch(
            f"{folder} and the base differ in the position parameter {odd[0]!r}. Save the adapter again."
        )
    for name, value in saved.items():
        live[name].data.copy_(value)


def position_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Learned position parameters that PEFT does not save itself, by their names in the base model."""
    base, _ = base_model_of(model)
    owned_by_peft = ("modules_to_save", "original_module", "lora_")
    return {
        name: parameter
        for name, parameter in base.named_parameters()
        if "posenc" in (path := name.split(".")) and not any(p.startswith(owned_by_peft) for p in path)
    }


def base_of_adapter(folder: str) -> str | None:
    """Where the base of an adapter is, if ``folder`` holds an adapter and no model."""
    if not (Path(folder) / PEFT_CONFIG).is_file() or (Path(folder) / "config.json").exists():
        return None
    base = read_json(Path(folder) / PEFT_CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} does not name its base. Load that, and pass peft_adapter=."
        )
    return base


def local_folder(name: str | os.PathLike[str]) -> Path:
    """A folder as it is; a Hub name as the folder its JSON and safetensors files were downloaded to."""
    given = checked_name(name, "A PEFT adapter")
    if Path(given).is_dir():
        return Path(given)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(given, allow_patterns=["*.json", "*.safetensors"]))
    except (OSError, ValueError) as error:  # the hub's errors are one or the other
        first = str(error).partition("\n")[0].rstrip(" .")
        raise ModelNotFound(f"The PEFT adapter {given!r} cannot be had: {first}. Check the name.") from error


def read_json(file: Path) -> dict[str, Any]:
    """The object in a small JSON file.

    Raises:
        PeftAdapterMismatch: it is missing, too large, or something else.
    """
    try:
        return read_object(file)
    except (OSError, ValueError) as error:
        raise PeftAdapterMismatch(f"{file} cannot be read: {error}. Copy or save the adapter again.") from error
