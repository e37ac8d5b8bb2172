"""Facts about a model from its configuration: positional encoding, trained length, scaling, memory."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.errors import AlreadyPatched
from hf_posenc.insight.advise.memory import Memory, measured, skeleton
from hf_posenc.patching.layer_schemes import is_causal, layout_of, overwrites_scaling, trained_length_of_patch
from hf_posenc.patching.scheme_config import SchemeConfig
from hf_posenc.patching.state import base_model_of

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry


@dataclass(frozen=True)
class TargetModel:
    """The model that advice is about, and the context length that it shall have.

    Attributes:
        name: name for messages and commands.
        target: requested context length in tokens.
        skeleton: the model without weights.
        memory: memory of weights and cache.
        adapter: adapter of the architecture.
        trained: trained length in tokens, before any scaling.
        reach: context length of the unpatched model in tokens, its own scaling included.
        scaling: RoPE type with which the configuration scales positions; None without scaling.
    """

    name: str
    target: int
    skeleton: PreTrainedModel
    memory: Memory
    adapter: Any
    trained: int
    reach: int
    scaling: str | None

    @classmethod
    def of(cls, given: Any, target: int, name: str | None = None, dtype: str | None = None) -> TargetModel:
        """Read a loaded model, a configuration, or the configuration of a named checkpoint.

        Raises:
            UnsupportedModel: there is no adapter for the architecture, or transformers itself does not know it.
            AlreadyPatched: the model carries a scheme.
        """
        config = _config_of(given)
        named = name or (os.fspath(given) if isinstance(given, (str, os.PathLike)) else config.name_or_path or "MODEL")
        config = copy.deepcopy(config.get_text_config())
        bare = skeleton(config, dtype)
        adapter = base_model_of(bare)[1]
        memory = measured(bare, target, causal=is_causal(bare))
        trained, reach = adapter.trained_length(config), adapter.reach(config)
        return cls(named, target, bare, memory, adapter, trained, reach, adapter.scaled_already(config))

    @property
    def config(self) -> PreTrainedConfig:
        """Configuration of the model."""
        return self.skeleton.config

    @property
    def has_head(self) -> bool:
        """Whether the checkpoint has a head; assumed if the configuration names no class."""
        return base_model_of(self.skeleton)[0] is not self.skeleton or not self.config.architectures

    @property
    def geometry(self) -> Geometry:
        """Geometry of the model at its trained length."""
        return self.adapter.geometry(self.config, trained_length=self.trained, target_length=self.trained)

    def counts_from(self, scheme: str) -> int:
        """Return the trained length that `patch_model` assumes for a scheme, in tokens."""
        return trained_length_of_patch(self.adapter, self.config, scheme)

    def overwrites_scaling(self, scheme: str) -> bool:
        """Whether a scheme replaces a scaled rotation, so that `patch_model` needs ``trained_length``."""
        geometry = self.geometry
        return overwrites_scaling(self.adapter, self.config, layout_of(scheme, {}, None, geometry), geometry)

    @property
    def positions(self) -> str:
        """The model's current positional encoding, in words."""
        if (table := self.geometry.table) is not None:
            return f"a learned table of {table:,} rows"
        if self.geometry.slopes is not None:
            return "linear bias (ALiBi)"
        rotary = self.geometry.rotary
        unrotated = "a learned bias of the distance" if self.geometry.biased else "none"
        base = f"rotation, base {rotary.base:,.0f}" if rotary else unrotated
        if self.scaling is None:
            return base
        return f"{base}, scaled by {self.scaling!r}" + (f" to {self.reach:,}" if self.reach != self.trained else "")


def _config_of(given: Any) -> PreTrainedConfig:
    if isinstance(given, nn.Module):
        given = base_model_of(given)[0].config
    if isinstance(given, PreTrainedConfig):
        config = given
        carried = SchemeConfig.of_config(vars(config.get_text_config()), config.name_or_path or "this model")
    else:
        checkpoint = given if isinstance(given, Checkpoint) else Checkpoint.open(given)
        config, carried = checkpoint.hf_config(), checkpoint.scheme
    if carried is not None:
        raise AlreadyPatched(f"This model carries scheme {carried}. Pass the original, unpatched model.")
    return config
