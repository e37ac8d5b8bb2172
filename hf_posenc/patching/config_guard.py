"""The config guard: entries of a saved ``config.json`` that keep plain transformers from loading a patched model.

Plain transformers ignores unknown keys of ``config.json`` and unknown weights, and would compute other outputs. So
these entries of a patched model's configuration are replaced on disk, and no other program can build the model:

- ``model_type`` becomes a sentence that no Auto class or other program knows. It names the function to call. It also
  says that a newer transformers does not help, because transformers' own error message recommends an update.
- The number of layers becomes a sentence with instructions. transformers' classes refuse it, as it is not an integer.
- The list of layer types is left out, because `AutoTokenizer` compares its length with the number of layers.

The original entries are saved under ``position_scheme_guard``. That is a list, because transformers would read an
object with a ``model_type`` as the configuration itself. The configuration in memory is unchanged. Its class becomes a
subclass with the same name, which writes the guard when saving and removes it when reading.

Not covered: these weights loaded with a configuration built by hand. transformers then reports learned position
parameters as unexpected; for schemes without parameters it reports nothing. Tokenizers load as before.

The model card gives people the same instructions (`hf_posenc.patching.model_card`).
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

SCHEME_KEY = "position_scheme"  # key of the scheme, its options and lengths
GUARD_KEY = "position_scheme_guard"
ROTATION_KEY, ROPE_KEY = "position_scheme_rotation", "rope_parameters"
"""Keys of config.json: ``rope_parameters`` at the time of the patch, and the present ones."""
CODE_KEY = "position_scheme_code"
"""Key of config.json: digest of the code of schemes from outside this package, see `scheme_config.own_code`."""
PATCH_KEYS = (SCHEME_KEY, ROTATION_KEY, CODE_KEY)
"""Keys that an unpatched model's configuration does not have."""
LAYERS_KEY, KINDS_KEY = "num_hidden_layers", "layer_types"
GUARDED_MARK = "posenc_guarded"  # attribute of the classes that `guarded_class` makes
CODE_MAP, MODELING = "auto_map", "modeling_hf_posenc"
"""Key of config.json for classes that a checkpoint brings, and the module that this package writes them into."""


def guard(content: Mapping[str, Any], layers_key: str) -> dict[str, Any]:
    """Add the config guard to the content of a ``config.json``. Without a scheme the content is unchanged.

    ``layers_key`` is the key of the number of layers.
    """
    if content.get(SCHEME_KEY) is None or GUARD_KEY in content:
        return dict(content)
    model_type, layers = content.get("model_type"), content.get(layers_key)
    replaced: dict[str, Any] = {
        "model_type": f"{model_type} with positions of the package hf_posenc: pip install hf_posenc, and load it with "
        "hf_posenc.from_pretrained, or call hf_posenc.enable_auto() first; updating transformers does not help"
    }
    if isinstance(layers, int):
        replaced[layers_key] = (
            "Load this checkpoint with hf_posenc.from_pretrained, or call hf_posenc.enable_auto() first: the positions "
            f"of its {layers} layers need the package hf_posenc (pip install hf_posenc)."
        )
    if isinstance(content.get(KINDS_KEY), list):
        replaced[KINDS_KEY] = None
    return {**content, **replaced, GUARD_KEY: [[name, content.get(name)] for name in replaced]}


def unguard(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Undo `guard`: remove the config guard and restore the original entries.

    Raises:
        CheckpointMismatch: the guard is damaged.
    """
    originals = content.get(GUARD_KEY)
    unguarded = {name: value for name, value in content.items() if name != GUARD_KEY}
    if originals is None:
        return unguarded
    if not isinstance(originals, list) or not all(map(partial(_is_valid_entry, unguarded), originals)):
        raise CheckpointMismatch(
            f"The {GUARD_KEY} of {where} cannot be read: it is {shown(originals)}. Save the patched model again."
        )
    return {**unguarded, **dict(originals)}


def _is_valid_entry(content: Mapping[str, Any], entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
        return False
    name, value = entry
    if name == KINDS_KEY:
        return name in content and isinstance(value, list) and all(isinstance(kind, str) for kind in value)
    return name in content and type(value) is (str if name == "model_type" else int)


@lru_cache(maxsize=64)
def guarded_class(cls: Any) -> Any:
    """A subclass of a configuration class that writes and removes the config guard; ``cls`` itself if it does already.

    The subclass has the same name, because Auto classes find models by it.
    """
    if vars(cls).get(GUARDED_MARK):
        return cls

    def to_json_file(self: Any, json_file_path: str | os.PathLike[str], use_diff: bool = True) -> None:
        """Write what the class itself writes, with the config guard if the configuration has a scheme."""
        content = without_own_code(json.loads(self.to_json_string(use_diff=use_diff)))
        guarded = guard(content, cls.attribute_map.get(LAYERS_KEY, LAYERS_KEY))
        text = json.dumps(guarded, indent=2, sort_keys=True) + "\n"
        path = Path(json_file_path)
        if content.get(SCHEME_KEY) is None or path.name != CONFIG_NAME:
            return write_bytes(path, text.encode())
        with staged(path.parent) as staging:
            write_bytes(staging / path.name, text.encode())
            write_section(staging, content[SCHEME_KEY])

    def get_config_dict(
        owner: Any, pretrained_model_name_or_path: Any, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The result of the class's own method, with the config guard removed."""
        content, unused_kwargs = cls.get_config_dict.__func__(owner, pretrained_model_name_or_path, **kwargs)
        return unguard(content, str(pretrained_model_name_or_path)), unused_kwargs

    def reduced(self: Any, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles refer to the original class, because this subclass cannot be imported."""
        return empty_config, (cls,), self.__dict__

    def register_for_auto_class(owner: Any, auto_class: str = "AutoConfig") -> None:
        """Do nothing: transformers would copy the file of the class into checkpoints, and this class has no file."""

    own = {
        "to_json_file": to_json_file, "get_config_dict": classmethod(get_config_dict), "__reduce_ex__": reduced,
        "register_for_auto_class": classmethod(register_for_auto_class),
    }  # fmt: skip
    identity = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), {**own, **identity, GUARDED_MARK: True})


def empty_config(cls: Any) -> PreTrainedConfig:
    """An empty configuration of the guarded class, for a copy to fill."""
    guarded: Any = guarded_class(cls)
    return guarded.__new__(guarded)


def without_own_code(content: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the ``auto_map`` entries of bundled code, which `code_bundle.write_code` writes anew."""
    foreign = {name: where for name, where in (content.get(CODE_MAP) or {}).items() if MODELING not in where}
    other_entries = {name: value for name, value in content.items() if name != CODE_MAP}
    return other_entries | ({CODE_MAP: foreign} if foreign else {})
