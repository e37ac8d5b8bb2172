"""Let transformers' own loaders, such as ``AutoModel…from_pretrained`` and pipelines, restore schemes.

Between `enable_auto` and `disable_auto`, two class methods of `PreTrainedModel` are replaced. They restore a scheme if
the configuration carries one, and call transformers' own method otherwise. One method of `PreTrainedConfig` is replaced
to remove the config guard (`hf_posenc.patching.config_guard`). PEFT's own loaders then patch a plain base with the
adapter's scheme (`hf_posenc.checkpoints.peft_hooks`).
"""

from __future__ import annotations

import os
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hf_posenc.checkpoints.adapter_folder import AdapterFolder
from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.checkpoints.config import check_no_remote_code, config_content
from hf_posenc.checkpoints.restore import PATCHED_CLASS_MARK, load_weights, patched_class
from hf_posenc.core.tested_versions import host_changed
from hf_posenc.errors import PeftAdapterMismatch
from hf_posenc.patching.config_guard import SCHEME_KEY, unguard
from hf_posenc.patching.scheme_config import SchemeConfig

_ORIGINALS: dict[str, Any] = {}


def enable_auto() -> None:
    """Make every model class and Auto class of transformers restore the scheme of a checkpoint, until `disable_auto`.

    Raises:
        HostChanged: the installed transformers lacks a method that must be replaced.
    """
    if not _ORIGINALS:
        for name, (owner, _) in HOOKS.items():
            if not isinstance(vars(owner).get(name), classmethod):
                raise host_changed("transformers", f"the class method {owner.__name__}.{name} that hf-posenc replaces")
        for name, (owner, hook) in HOOKS.items():
            _ORIGINALS[name] = owner.__dict__[name]
            setattr(owner, name, classmethod(hook))


def auto_enabled() -> bool:
    """Whether `enable_auto` is in force."""
    return bool(_ORIGINALS)


def disable_auto() -> None:
    """Undo `enable_auto`. Models that were loaded before keep their schemes."""
    while _ORIGINALS:
        name, original = _ORIGINALS.popitem()
        setattr(HOOKS[name][0], name, original)


def _from_pretrained(cls: Any, name_or_path: Any, *args: Any, config: Any = None, **hf_kwargs: Any) -> Any:
    original = _ORIGINALS["from_pretrained"].__func__
    hf_kwargs["config"] = config
    name = None if name_or_path is None else os.fspath(name_or_path)
    scheme = None if PATCHED_CLASS_MARK in vars(cls) else _scheme_to_load(name, **hf_kwargs)
    if scheme is None:
        return original(cls, name_or_path, *args, **hf_kwargs)
    returns_info = hf_kwargs.pop("output_loading_info", False)
    model, info = load_weights(cls, name, scheme, *args, **hf_kwargs)
    return (model, info) if returns_info else model


def _scheme_to_load(name: str | None, *, output_loading_info: bool = False, **hf_kwargs: Any) -> SchemeConfig | None:
    """The scheme of a checkpoint, or of a configuration with a state dict in memory; None for a plain model."""
    if name is None:
        config = hf_kwargs["config"]
        given = isinstance(config, PreTrainedConfig)
        return SchemeConfig.of_config(vars(config), "this configuration") if given else None
    folder = (hf_kwargs.get("adapter_kwargs") or {}).get("_adapter_model_path") or name
    if os.path.isdir(folder) and AdapterFolder.open(folder).scheme is not None:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} carries a position scheme, which transformers' own loader ignores. "
            f"Use hf_posenc.from_pretrained({os.fspath(folder)!r})."
        )
    try:
        patched = config_content(name, hf_kwargs).get(SCHEME_KEY) is not None
    except OSError:  # nothing to load: transformers raises its own error
        return None
    return Checkpoint.open(name, **hf_kwargs).model_scheme if patched else None


def _from_config(cls: Any, config: Any, **kwargs: Any) -> Any:
    original = _ORIGINALS["_from_config"].__func__
    patched = PATCHED_CLASS_MARK in vars(cls)  # the constructor of such a class applies the scheme itself
    scheme = None if patched else SchemeConfig.of_config(vars(config), "this configuration")
    if scheme is None:
        return original(cls, config, **kwargs)
    return original(patched_class(cls, scheme), config, **kwargs)


def _get_config_dict(
    cls: Any, pretrained_model_name_or_path: Any, **kwargs: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    content, unused_kwargs = _ORIGINALS["get_config_dict"].__func__(cls, pretrained_model_name_or_path, **kwargs)
    if content.get(SCHEME_KEY) is not None:
        check_no_remote_code(content, str(pretrained_model_name_or_path), kwargs)
    return unguard(content, str(pretrained_model_name_or_path)), unused_kwargs


HOOKS: dict[str, tuple[type, Any]] = {
    "from_pretrained": (PreTrainedModel, _from_pretrained),
    "_from_config": (PreTrainedModel, _from_config),
    "get_config_dict": (PreTrainedConfig, _get_config_dict),
}
