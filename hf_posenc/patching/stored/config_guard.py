"""A checkpoint that needs this package must not look healthy without it.

Plain transformers keeps an unknown key of ``config.json``, drops unknown weights, and computes something else. On disk,
and only there, two entries of a patched model's configuration are therefore such that nobody else can build the model:

- ``model_type`` is one that no Auto class knows, nor any program that chooses its model by it;
- the number of layers is a sentence that says what to do, which transformers' own classes refuse as no integer.

What stood there is kept under ``position_scheme_guard``, as a list: transformers would take an object that has the
host's ``model_type`` for the configuration itself. A live configuration is as usual; its class is a subclass of the
host's, under the same name, that writes the guard and reads past it.

What remains: somebody who builds a configuration by hand and loads these weights into it. transformers then reports
learned position parameters as unexpected, and nothing of schemes without any. Tokenizers load as before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.utils import CONFIG_NAME

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import CheckpointMismatch, shown
from hf_posenc.patching.stored.model_card import SCHEME_KEY as SCHEME_KEY
from hf_posenc.patching.stored.model_card import write_section

GUARD_KEY = "position_scheme_guard"
ROTATION_KEY, ROPE_KEY = "position_scheme_rotation", "rope_parameters"
"""Of config.json: what the host's rotation was when the scheme was put on, and what it is."""
LAYERS_KEY = "num_hidden_layers"
GUARDED_MARK = "posenc_guarded"  # marks the classes made here


def guard(content: Mapping[str, Any], depth: str = LAYERS_KEY) -> dict[str, Any]:
    """The content of a ``config.json`` that only this package can load; as it is where it carries no scheme.

    Args:
        content: of the file.
        depth: what the host calls the number of its layers.
    """
    if content.get(SCHEME_KEY) is None or GUARD_KEY in content:
        return dict(content)
    kind, layers = content.get("model_type"), content.get(depth)
    replaced: dict[str, Any] = {"model_type": f"load-{kind}-with-hf_posenc.from_pretrained"}
    if isinstance(layers, int):
        replaced[depth] = (
            f"{layers} layers whose positions need the package hf_posenc. Load this checkpoint with "
            "hf_posenc.from_pretrained, or call hf_posenc.enable_auto() first."
        )
    return {**content, **replaced, GUARD_KEY: [[name, content.get(name)] for name in replaced]}


def unguard(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What `guard` was given.

    Raises:
        CheckpointMismatch: the guard is damaged.
    """
    kept = content.get(GUARD_KEY)
    plain = {name: value for name, value in content.items() if name != GUARD_KEY}
    if kept is None:
        return plain
    if not isinstance(kept, list) or not all(map(partial(_is_valid_entry, plain), kept)):
        raise CheckpointMismatch(
            f"The {GUARD_KEY} of {where} cannot be read: it is {shown(kept)}. Save the patched model again."
        )
    return {**plain, **dict(kept)}


def _is_valid_entry(plain: Mapping[str, Any], entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
        return False
    name, value = entry
    return name in plain and type(value) is (str if name == "model_type" else int)


@lru_cache(maxsize=64)
def guarded_class(cls: Any) -> Any:
    """A class of configurations that write the guard and read past it; ``cls`` itself where it does.

    It has the host's name, by which Auto classes find models.
    """
    if vars(cls).get(GUARDED_MARK):
        return cls

    def to_json_file(self: Any, json_file_path: str | os.PathLike[str], use_diff: bool = True) -> None:
        """The host's, with the guard where the configuration carries a scheme."""
        content = json.loads(self.to_json_string(use_diff=use_diff))
        text = (
            json.dumps(guard(content, cls.attribute_map.get(LAYERS_KEY, LAYERS_KEY)), indent=2, sort_keys=True) + "\n"
        )
        path = Path(json_file_path)
        if content.get(SCHEME_KEY) is None or path.name != CONFIG_NAME:
            return write_bytes(path, text.encode())
        with staged(path.parent) as beside:
            write_bytes(beside / path.name, text.encode())
            write_section(beside, content[SCHEME_KEY])

    def get_config_dict(
        owner: Any, pretrained_model_name_or_path: Any, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The host's, past the guard."""
        content, rest = cls.get_config_dict.__func__(owner, pretrained_model_name_or_path, **kwargs)  # type: ignore[attr-defined]
        return unguard(content, str(pretrained_model_name_or_path)), rest

    def reduced(self: Any, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles name the host's class: this one cannot be imported."""
        return empty_config, (cls,), self.__dict__

    own = {"to_json_file": to_json_file, "get_config_dict": classmethod(get_config_dict), "__reduce_ex__": reduced}
    place = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), {**own, **place, GUARDED_MARK: True})


def empty_config(cls: Any) -> PreTrainedConfig:
    """An empty guarded configuration, for a copy to fill."""
    made: Any = guarded_class(cls)
    return made.__new__(made)
