"""The config guard: entries of a saved ``config.json`` that keep plain transformers from loading a patched model.

Plain transformers keeps an unknown key of ``config.json``, drops unknown weights, and computes something else. On disk,
and only there, these entries of a patched model's configuration are therefore such that no other program can build it:

- ``model_type`` is one that no Auto class knows, nor any program that chooses its model by it: it says what to call,
  and that a newer transformers does not help, which transformers' own message advises after it;
- the number of layers is a sentence that says what to do, which transformers' own classes refuse as no integer;
- the kinds of layers, where there are any, are left out: `AutoTokenizer` compares their number with that of the layers.

The original entries are kept under ``position_scheme_guard``, as a list: transformers would take an object that has a
``model_type`` for the configuration itself. A live configuration is unchanged; its class is a subclass of the model's
own, under the same name, that writes the guard and removes it when reading.

Not covered: a configuration built by hand that these weights are loaded into. transformers then reports learned
position parameters as unexpected, and nothing for schemes without any. Tokenizers load as before.

The model card says the same to people (`hf_posenc.patching.model_card`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from transformers import CONFIG_NAME, PreTrainedConfig

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import CheckpointMismatch, shown
from hf_posenc.patching.model_card import write_section

SCHEME_KEY = "position_scheme"  # of a configuration: the scheme, its options and lengths
GUARD_KEY = "position_scheme_guard"
ROTATION_KEY, ROPE_KEY = "position_scheme_rotation", "rope_parameters"
"""Keys of config.json: ``rope_parameters`` at the time of the patch, and those of now."""
CODE_KEY = "position_scheme_code"
"""Key of config.json: the code of schemes that are not of this package, as `own_code` describes it."""
PATCH_KEYS = (SCHEME_KEY, ROTATION_KEY, CODE_KEY)
"""Keys that an unpatched model's configuration does not have."""
LAYERS_KEY, KINDS_KEY = "num_hidden_layers", "layer_types"
GUARDED_MARK = "posenc_guarded"  # marks the classes made here
CODE_MAP, MODELING = "auto_map", "modeling_hf_posenc"
"""Key of config.json for classes that a checkpoint brings, and the module that this package writes them into."""


def guard(content: Mapping[str, Any], depth: str) -> dict[str, Any]:
    """Add the config guard to the content of a ``config.json``; unchanged where it carries no scheme."""
    if content.get(SCHEME_KEY) is None or GUARD_KEY in content:
        return dict(content)
    kind, layers = content.get("model_type"), content.get(depth)
    replaced: dict[str, Any] = {
        "model_type": f"{kind} with positions of the package hf_posenc: pip install hf_posenc, and load it with "
        "hf_posenc.from_pretrained, or call hf_posenc.enable_auto() first; updating transformers does not help"
    }
    if isinstance(layers, int):
        replaced[depth] = (
            "Load this checkpoint with hf_posenc.from_pretrained, or call hf_posenc.enable_auto() first: the positions "
            f"of its {layers} layers need the package hf_posenc (pip install hf_posenc)."
        )
    if isinstance(content.get(KINDS_KEY), list):
        replaced[KINDS_KEY] = None
    return {**content, **replaced, GUARD_KEY: [[name, content.get(name)] for name in replaced]}


def unguard(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The content that `guard` was given.

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
    if name == KINDS_KEY:
        return name in plain and isinstance(value, list) and all(isinstance(kind, str) for kind in value)
    return name in plain and type(value) is (str if name == "model_type" else int)


@lru_cache(maxsize=64)
def guarded_class(cls: Any) -> Any:
    """A subclass of a configuration that writes and removes the config guard; ``cls`` itself where it is one.

    It has the same name, by which Auto classes find models.
    """
    if vars(cls).get(GUARDED_MARK):
        return cls

    def to_json_file(self: Any, json_file_path: str | os.PathLike[str], use_diff: bool = True) -> None:
        """The class's own, with the config guard where the configuration carries a scheme."""
        content = without_own_code(json.loads(self.to_json_string(use_diff=use_diff)))
        text = (
            json.dumps(guard(content, cls.attribute_map.get(LAYERS_KEY, LAYERS_KEY)), indent=2, sort_keys=True) + "\n"
        )
        path = Path(json_file_path)
        if content.get(SCHEME_KEY) is None or path.name != CONFIG_NAME:
            return write_bytes(path, text.encode())
        with staged(path.parent) as staging:
            write_bytes(staging / path.name, text.encode())
            write_section(staging, content[SCHEME_KEY])

    def get_config_dict(
        owner: Any, pretrained_model_name_or_path: Any, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The class's own, with the config guard removed."""
        content, rest = cls.get_config_dict.__func__(owner, pretrained_model_name_or_path, **kwargs)
        return unguard(content, str(pretrained_model_name_or_path)), rest

    def reduced(self: Any, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles name the original class: this one cannot be imported."""
        return empty_config, (cls,), self.__dict__

    def register_for_auto_class(owner: Any, auto_class: str = "AutoConfig") -> None:
        """Nothing: transformers would copy the file of the class into checkpoints, and this one has none."""

    own = {
        "to_json_file": to_json_file, "get_config_dict": classmethod(get_config_dict), "__reduce_ex__": reduced,
        "register_for_auto_class": classmethod(register_for_auto_class),
    }  # fmt: skip
    identity = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), {**own, **identity, GUARDED_MARK: True})


def empty_config(cls: Any) -> PreTrainedConfig:
    """An empty configuration of the guarded class, for a copy to fill."""
    made: Any = guarded_class(cls)
    return made.__new__(made)


def without_own_code(content: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the classes that the checkpoint it is from has brought: its code is written apart."""
    kept = {name: where for name, where in (content.get(CODE_MAP) or {}).items() if MODELING not in where}
    return {name: value for name, value in content.items() if name != CODE_MAP} | ({CODE_MAP: kept} if kept else {})
