"""A checkpoint, validated once. Functions that load or inspect checkpoints take this value instead of a name.

name → model, and adapter if the name leads to one → files of the folder → config.json → scheme config → PEFT sidecar
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from hf_posenc.checkpoints.adapter_folder import AdapterFolder
from hf_posenc.checkpoints.config import config_content
from hf_posenc.checkpoints.hub import hub_options, with_hub_options
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.validate import check_folder, check_layer_count, stored_weights
from hf_posenc.core.files.hf_errors import explained_errors
from hf_posenc.errors import CheckpointMismatch, UnsupportedModel, shown
from hf_posenc.patching.host_config import check_lengths_and_rotation
from hf_posenc.patching.scheme_config import SchemeConfig

AUTO_CLASSES = [cls for name, cls in vars(modeling_auto).items() if name.startswith("AutoModel")]
"""The Auto classes of transformers, with which other packages register model classes."""


@dataclass(frozen=True)
class Checkpoint:
    """A model whose files, configuration and schemes have been checked.

    Attributes:
        named: location of the model and its adapter, with the options of the Hub for each.
        config: content of ``config.json``, without the config guard; or of the configuration the caller passed.
        model_scheme: scheme that the model was saved with; None for a plain model.
        adapter: PEFT adapter to load on top; None for a model alone.
    """

    named: ModelName
    config: Mapping[str, Any]
    model_scheme: SchemeConfig | None
    adapter: AdapterFolder | None

    @classmethod
    def open(
        cls,
        name_or_path: str | os.PathLike[str] | ModelName,
        *,
        peft_adapter: str | os.PathLike[str] | None = None,
        **hf_kwargs: Any,
    ) -> Checkpoint:
        """Find a checkpoint and check it, without loading its weights.

        Args:
            name_or_path: name of a model; or of a PEFT adapter, whose base is then the model. See
                `hf_posenc.checkpoints.model_name`.
            peft_adapter: name of a PEFT adapter to load on top of the model.
            **hf_kwargs: keywords of ``from_pretrained``: ``config``, options of the Hub, and options that override the
                implementation in the configuration. ``revision`` and ``subfolder`` apply to ``name_or_path`` only;
                others, such as ``token``, apply to both names.

        Raises:
            WrongKind: a name is neither text nor a path.
            ModelNotFound: there is no such model, or it cannot be downloaded.
            CheckpointMismatch: files are damaged, contradict each other, or name code to be fetched.
            HostConfigInvalid: lengths or RoPE parameters in the configuration are out of range.
            PeftAdapterMismatch: the adapter is damaged or incomplete.
        """
        named = name_or_path
        if not isinstance(named, ModelName):
            named = ModelName.of(named, adapter=peft_adapter, hub=hub_options(hf_kwargs))
        keywords = with_hub_options(hf_kwargs, named.hub)
        check_folder(named.model)
        with explained_errors(named.model):
            config = config_content(named.model, keywords)
            check_lengths_and_rotation(config, named.model)
            if keywords.get("config") is None and not keywords.get("subfolder"):  # else it describes other weights
                weights = (name for name, _ in stored_weights(Path(named.model)))
                check_layer_count(named.model, config, weights)
        adapter = None if named.adapter is None else AdapterFolder.open(named.adapter, **named.adapter_hub)
        return cls(named, config, SchemeConfig.of_config(config, named.model), adapter)

    @property
    def name(self) -> str:
        """Folder or Hub name of the model, as transformers accepts it."""
        return self.named.model

    @property
    def scheme(self) -> SchemeConfig | None:
        """The scheme to load: the model's own, or else the scheme that its adapter was trained under."""
        return self.model_scheme or (self.adapter.scheme if self.adapter else None)

    @property
    def architectures(self) -> list[str]:
        """Names of the model classes in the configuration."""
        listed = self.config.get("architectures")
        return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []

    def hf_config(self) -> PreTrainedConfig:
        """The configuration as an object of transformers.

        Raises:
            UnsupportedModel: transformers does not know the architecture.
            CheckpointMismatch: there is no configuration, or it cannot be built.
        """
        model_type = self.config.get("model_type")
        if model_type is None:
            raise CheckpointMismatch(
                f"The checkpoint {shown(self.name)} cannot be loaded: it has no configuration with a model_type. "
                "Copy or save it again."
            )
        if model_type not in CONFIG_MAPPING:
            raise UnsupportedModel(
                f"The configuration of {self.name} has the model_type {shown(model_type)}, which transformers does not "
                "know. Register its classes in a file that you import (--import): "
                f"AutoConfig.register({shown(model_type)}, …) and AutoModelForCausalLM.register(…)."
            )
        with explained_errors(self.name):
            return CONFIG_MAPPING[model_type].from_dict(dict(self.config))

    def model_class(self, requested: Any = None) -> type[PreTrainedModel]:
        """The class to build: the requested class, the choice of a requested Auto class, or the checkpoint's own.

        Raises:
            CheckpointMismatch: the configuration names no class that transformers or an Auto class has; or the
                requested Auto class knows none.
        """
        with explained_errors(self.name):
            for candidate in self._candidates(requested):
                if isinstance(candidate, type) and issubclass(candidate, PreTrainedModel):
                    return candidate
        if self.config.get("model_type") is None:
            self.hf_config()  # raises an error that names the missing entry
        raise CheckpointMismatch(
            f"{self.name} has the architectures {self.architectures}, and none of them is a class that can be loaded. "
            "Name one in its config.json, or load it in Python with model_class=, such as AutoModelForCausalLM."
        )

    def _candidates(self, requested: Any) -> list[Any]:
        if requested is None:
            own = [getattr(transformers, name, None) for name in self.architectures]
            registered = [cls for auto in AUTO_CLASSES for cls in self._candidates(auto)]
            return own + [cls for cls in registered if cls.__name__ in self.architectures]
        if not hasattr(requested, "_model_mapping"):
            return [requested]
        kind = self.config.get("model_type")
        config_class = CONFIG_MAPPING[kind] if kind in CONFIG_MAPPING else None  # noqa: SIM401  # `get` loads nothing
        known = () if config_class is None else requested._model_mapping.get(config_class, ())
        classes = list(known) if isinstance(known, (list, tuple)) else [known]
        return sorted(classes, key=lambda cls: cls.__name__ not in self.architectures)
