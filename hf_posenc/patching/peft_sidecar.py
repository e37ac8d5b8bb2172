"""The PEFT sidecar: files beside a PEFT adapter that record the scheme it was trained under.

``position_scheme.json`` is the scheme config (`hf_posenc.patching.scheme_config`). It has its own digest and that of
``position_scheme.safetensors``, so that damaged files are detected. The latter holds learned position parameters that
PEFT does not save, because they are not in ``modules_to_save``.

PEFT would load such an adapter on any base, patched or not, and compute other outputs. So in ``adapter_config.json``
the adapter type is replaced by a sentence with instructions; the original is saved under ``position_scheme_guard``. Not
covered: a PEFT configuration that the caller passes (``config=``).

The adapter's own configuration writes all three files. PEFT, transformers and `Trainer` all call its
``save_pretrained``, after they have written the weights. The files are staged, and ``adapter_config.json`` is moved
last. So an interrupted save never leaves a new configuration without its guard. `hf_posenc.checkpoints.adapter_folder`
reads the files.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import weakref
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from hf_posenc.core.files.atomic import write_bytes, write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import FolderUnusable, PeftAdapterMismatch, shown
from hf_posenc.patching.config_guard import CODE_KEY, GUARD_KEY
from hf_posenc.patching.model_card import FRONT_MATTER, SECTION, TAG, replace_section, with_package
from hf_posenc.patching.scheme_config import SchemeConfig, own_code
from hf_posenc.patching.state import describe, is_patched, scheme_holder
from hf_posenc.patching.text_limits import raise_limits_in

SIDECAR, PARAMETERS, PEFT_CONFIG = "position_scheme.json", "position_scheme.safetensors", "adapter_config.json"
DIGEST, OWN_DIGEST = "parameters_sha256", "sha256"
BASE_KEY = "posenc_base"  # attribute of a PEFT configuration: weak reference to the base whose scheme it saves
TYPE_KEY = "peft_type"
GUARD_TEXT = (
    "Load this adapter with hf_posenc.from_pretrained, or on a base with hf_posenc.load_peft_adapter: it is {kind} on "
    "positions of the package hf_posenc (pip install hf_posenc)."
)


def write_sidecar_on_save(base: nn.Module, peft_configs: MutableMapping[str, Any]) -> None:
    """Make the PEFT configurations of a model write the sidecar of ``base`` when they are saved.

    Each is replaced by a copy, because the caller may use the same object for another model.
    """
    for name, config in peft_configs.items():
        bound = config.__dict__.get(BASE_KEY)
        if bound is None or bound() is not base:
            peft_configs[name] = own = copy.copy(config)
            own.__class__ = sidecar_writing_class(own.__class__)
            own.__dict__[BASE_KEY] = weakref.ref(base)


@lru_cache(maxsize=64)
def sidecar_writing_class(cls: Any) -> Any:
    """A subclass of a PEFT configuration class that also saves the sidecar; ``cls`` itself if it does already."""
    if vars(cls).get(BASE_KEY):
        return cls

    def save_pretrained(self: Any, save_directory: str, **kwargs: Any) -> None:
        """Write PEFT's files, and the sidecar of the base beside them."""
        base = self.__dict__[BASE_KEY]()
        if base is None:
            return cls.save_pretrained(self, save_directory, **kwargs)
        with staged(save_directory, companions=(SIDECAR, PARAMETERS)) as staging:
            cls.save_pretrained(self, str(staging), **kwargs)
            write_sidecar(base, staging)
            raise_limits_in(Path(save_directory), base, into=staging)
            if is_patched(base):
                write_json(staging / PEFT_CONFIG, guard_adapter_config(read_json(staging / PEFT_CONFIG)))

    def reduced(self: Any, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles have PEFT's class again, and write no sidecar until they are part of a patched model."""
        state = {name: value for name, value in self.__dict__.items() if name != BASE_KEY}
        return cls.__new__, (cls,), state

    origin = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    methods = {"save_pretrained": save_pretrained, "__reduce_ex__": reduced, BASE_KEY: True}
    return type(cls.__name__, (cls,), {**methods, **origin})


def write_sidecar(model: nn.Module, folder: Path) -> None:
    """Write the scheme and unsaved position parameters of ``model``. Without one scheme for all, write nothing."""
    scheme = SchemeConfig.of_model(model)
    if scheme is None:
        return
    content = scheme.to_json()
    if code := own_code(scheme.layout):
        content[CODE_KEY] = code
    if parameters := position_parameters(model):
        data = save({name: p.detach().cpu().contiguous() for name, p in parameters.items()})
        write_bytes(folder / PARAMETERS, data)
        content[DIGEST] = hashlib.sha256(data).hexdigest()
    write_json(folder / SIDECAR, content | {OWN_DIGEST: sidecar_digest(content)})


def write_adapter_card(model: nn.Module, folder: Path, training: Mapping[str, Any] | None = None) -> None:
    """Write an adapter's model card into ``folder``: how to load it, and a table of facts about its ``training``."""
    config: Any = next(iter(model.peft_config.values()))  # type: ignore[operator]
    base, report = config.base_model_name_or_path, describe(model)
    loading = with_package(report.scheme.split("+"), f"{base or 'the base'!r}, peft_adapter={folder.name!r}")
    section = SECTION.format(
        scheme=report.scheme, trained_length=report.trained_length, target_length=report.target_length, loading=loading
    )
    if training:
        section += "\n| | |\n|---|---|\n" + "".join(
            f"| {name.replace('_', ' ')} | {value} |\n" for name, value in training.items()
        )
    base_line = f"\nbase_model: {base}" if base and not os.path.isdir(base) else ""
    replace_section(folder, section, FRONT_MATTER.format(library=f"peft{base_line}\ntags:\n- {TAG}"))


def sidecar_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of a sidecar's content, independent of white space and the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def position_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Learned position parameters that PEFT does not save itself, by name in the base model."""
    owned_by_peft = ("modules_to_save", "original_module", "lora_")
    return {
        name: parameter
        for name, parameter in scheme_holder(model).named_parameters()
        if "posenc" in (path := name.split(".")) and not any(p.startswith(owned_by_peft) for p in path)
    }


def guard_adapter_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of an ``adapter_config.json`` that only this package can load."""
    if GUARD_KEY in content:
        return dict(content)
    kind = content.get(TYPE_KEY)
    return {**content, TYPE_KEY: GUARD_TEXT.format(kind=kind), GUARD_KEY: {TYPE_KEY: kind}}


def unguard_adapter_config(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Undo `guard_adapter_config`: remove the guard and restore the adapter type.

    Raises:
        PeftAdapterMismatch: the config guard is damaged.
    """
    original = content.get(GUARD_KEY)
    unguarded = {name: value for name, value in content.items() if name != GUARD_KEY}
    if original is None:
        return unguarded
    if not isinstance(original, Mapping) or original.keys() != {TYPE_KEY} or not isinstance(original[TYPE_KEY], str):
        raise PeftAdapterMismatch(
            f"The {GUARD_KEY} of {where} cannot be read: it is {shown(original)}. Copy or save the adapter again."
        )
    return {**unguarded, **original}


def refuse_adapter_folder(folder: Path) -> None:
    """Raise `FolderUnusable` for a folder with a PEFT adapter: loaders would put it on top of a model saved there."""
    if (folder / PEFT_CONFIG).is_file():
        raise FolderUnusable(
            f"{shown(str(folder))} holds a PEFT adapter, which transformers would load on top of a model saved there. "
            "Choose another folder."
        )


def read_json(file: Path) -> dict[str, Any]:
    """Parse a small JSON file of an adapter's folder.

    Raises:
        PeftAdapterMismatch: the file is missing, too large, or not a JSON object.
    """
    try:
        return read_object(file)
    except (OSError, ValueError) as error:
        raise PeftAdapterMismatch(f"{file} cannot be read: {error}. Copy or save the adapter again.") from error
