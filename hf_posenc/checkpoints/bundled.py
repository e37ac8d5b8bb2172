"""Classes for a checkpoint that brings its code (`hf_posenc.patching.code_bundle`).

With ``trust_remote_code=True``, transformers loads that code, and its Auto classes use the model classes made here and
the configuration class that `guarded_class` makes.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from hf_posenc.checkpoints.restore import load_weights, patched_class
from hf_posenc.patching.config_guard import guarded_class
from hf_posenc.patching.scheme_config import SchemeConfig
from hf_posenc.patching.text_limits import OF_TOKENIZER, warn_of_cut


def model_class(cls: Any) -> Any:
    """A subclass of ``cls`` whose ``from_pretrained`` returns a ``cls`` with the checkpoint's scheme."""

    def from_pretrained(
        owner: Any, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **hf_kwargs: Any
    ) -> Any:
        """Load a model with the scheme in its configuration, from safetensors only.

        Warns:
            LimitKept: the tokenizer was saved after the model, and cuts texts that the model reads.
        """
        if not isinstance(config, PreTrainedConfig):
            config = owner.config_class.from_pretrained(pretrained_model_name_or_path if config is None else config)
        where, returns_info = str(pretrained_model_name_or_path), hf_kwargs.pop("output_loading_info", False)
        scheme = SchemeConfig.of_config(vars(config), where)
        model, info = load_weights(cls, where, scheme, *args, config=config, **hf_kwargs)
        warn_of_cut(get_tokenizer_config(where, **hf_kwargs).get(OF_TOKENIZER), config, where)
        return (model, info) if returns_info else model

    def from_config(owner: Any, config: Any, **kwargs: Any) -> Any:
        """Build a model with the scheme in its configuration."""
        scheme = SchemeConfig.of_config(vars(config), "this configuration")
        return (cls if scheme is None else patched_class(cls, scheme))._from_config(config, **kwargs)

    methods = {"from_pretrained": classmethod(from_pretrained), "_from_config": classmethod(from_config)}
    return type(cls.__name__, (cls,), {**methods, "config_class": guarded_class(cls.config_class)})
