"""What runs in a checkpoint that brings its code (`hf_posenc.patching.code_bundle`): its classes for Auto classes.

transformers fetches the code after ``trust_remote_code=True``, and calls the classes that are made here.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from hf_posenc.checkpoints.restore import check_no_missing_weights, finish_loading, patched_class
from hf_posenc.patching.config_guard import guarded_class
from hf_posenc.patching.scheme_config import SchemeConfig
from hf_posenc.patching.text_limits import OF_TOKENIZER, warn_of_cut


def config_class(cls: Any) -> Any:
    """The configuration that reads past the config guard."""
    return guarded_class(cls)


def model_class(cls: Any) -> Any:
    """A subclass of ``cls`` that loads a checkpoint with its scheme. What it returns is of class ``cls``."""

    def from_pretrained(
        owner: Any, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **hf_kwargs: Any
    ) -> Any:
        """The class's own, with the scheme that the configuration carries; from safetensors alone.

        Warns:
            LimitKept: the tokenizer beside it was saved last, and cuts texts that the model reads.
        """
        if not isinstance(config, PreTrainedConfig):
            config = owner.config_class.from_pretrained(pretrained_model_name_or_path if config is None else config)
        where, wanted = str(pretrained_model_name_or_path), hf_kwargs.pop("output_loading_info", False)
        loader = _of_config(config, where, hf_kwargs.get("device_map"))
        known = {"config": config, "output_loading_info": True, "use_safetensors": True}
        model, info = loader.from_pretrained(pretrained_model_name_or_path, *args, **{**hf_kwargs, **known})
        check_no_missing_weights(model, info, where)
        finish_loading(model, info["missing_keys"])
        warn_of_cut(get_tokenizer_config(where, **hf_kwargs).get(OF_TOKENIZER), config, where)
        return (model, info) if wanted else model

    def from_config(owner: Any, config: Any, **kwargs: Any) -> Any:
        """The class's own, with the scheme that the configuration carries."""
        return _of_config(config, "this configuration", None)._from_config(config, **kwargs)

    def _of_config(config: Any, where: str, device_map: Any) -> Any:
        scheme = SchemeConfig.of_config(vars(config), where)
        return cls if scheme is None else patched_class(cls, scheme, device_map)

    methods = {"from_pretrained": classmethod(from_pretrained), "_from_config": classmethod(from_config)}
    return type(cls.__name__, (cls,), {**methods, "config_class": guarded_class(cls.config_class)})
