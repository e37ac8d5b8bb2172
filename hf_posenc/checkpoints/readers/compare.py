"""Compare the rotation that each engine computes from an exported configuration with that of transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from hf_posenc.checkpoints.old_rope_keys import old_form
from hf_posenc.checkpoints.plain_config import PlainConfig, plain_config
from hf_posenc.checkpoints.readers import llama_cpp, mlx_lm, sglang, vllm
from hf_posenc.checkpoints.readers.stated import ExportedConfig, ReadRotation, Unread
from hf_posenc.core.geometry import HostRotary

Verdict = Literal["exact", "different", "unable", "unknown"]
READERS: dict[str, Callable[[ExportedConfig], ReadRotation]] = {
    reader.NAME: reader.read for reader in (vllm, sglang, mlx_lm, llama_cpp)
}
BY_LAYER_TYPE = {reader.NAME: reader.BY_LAYER_TYPE for reader in (sglang, mlx_lm, llama_cpp)}
"""Models whose code for parameters by type of layer was read in an engine. vLLM reads transformers' form of all."""
ROUNDING = 1e-6
"""Relative tolerance: engines compute frequencies in float32."""


@dataclass(frozen=True)
class Reading:
    """The comparison of an engine with transformers for an exported checkpoint.

    Attributes:
        reader: engine, and the version whose code was read.
        verdict: whether it computes the same as transformers; ``unknown`` if its code was not read for this model.
        layers: type of layers; None if all layers share their parameters.
        logit_scale: factor of the rotated part of the logits relative to transformers; None if not compared.
        phase: largest difference between two angles, in radians, at ``length`` tokens; None if not compared.
        length: length up to which rotations are compared, in tokens.
        reason: why the verdict is ``unable`` or ``unknown``; empty otherwise.
    """

    reader: str
    verdict: Verdict
    layers: str | None
    logit_scale: float | None
    phase: float | None
    length: int
    reason: str = ""

    def __str__(self) -> str:
        where = "" if self.layers is None else f" ({self.layers})"
        return f"{self.reader}{where}: {self.verdict}{self.explanation()}"

    def explanation(self) -> str:
        """The size of the difference, or the reason of the verdict; empty if the engine computes the same."""
        if self.reason:
            return f": {self.reason}"
        parts = []
        if self.logit_scale is not None and abs(self.logit_scale - 1.0) > ROUNDING:
            parts.append(f"logits times {self.logit_scale:.3g}")
        if self.verdict == "different" and self.phase:
            digits = ".2g" if self.phase < 10 else ",.0f"
            parts.append(f"angles up to {self.phase:{digits}} rad apart at {self.length:,} tokens")
        return f": {', '.join(parts)}" if parts else ""


def read_elsewhere(model: Any) -> list[Reading]:
    """Compare the rotation that engines would compute from the export of a patched model with that of transformers.

    No engine runs. Their formulas were written from reading their code. A scheme that depends on the length is compared
    up to the trained length, like its export.

    Args:
        model: a patched model that `hf_posenc.export` can write; it is not changed.

    Returns:
        One entry for each engine, or for each engine and type of layers.

    Raises:
        NotPatched: the model carries no scheme.
        NotExpressible: transformers cannot compute the scheme, see `hf_posenc.export`.
    """
    return list(readings(plain_config(model)))


def readings(plain: PlainConfig) -> Iterator[Reading]:
    """Comparisons of all engines with transformers for a configuration."""
    for layers, rotary in plain.rotaries.items():
        stated = stated_for(plain, layers, rotary)
        for reader, read in READERS.items():
            if layers is not None and stated.model_type not in BY_LAYER_TYPE.get(reader, (stated.model_type,)):
                reason = "its reading of parameters by type of layer was not compared"
                yield Reading(reader, "unknown", layers, None, None, stated.served_length, reason)
                continue
            try:
                yield compare_rotation(reader, layers, read(stated), rotary, stated.served_length)
            except Unread as error:
                yield Reading(reader, "unable", layers, None, None, stated.served_length, str(error))


def stated_for(plain: PlainConfig, layers: str | None, rotary: HostRotary) -> ExportedConfig:
    """The parameters that a configuration states for the layers of one type."""
    config = plain.of_base
    parameters = plain.parameters if layers is None else plain.parameters[layers]
    pairs = len(rotary.rotation.frequencies)
    share = parameters.get("partial_rotary_factor", 1.0)
    head_dim = 2 * pairs if parameters["rope_type"] == "proportional" else round(2 * pairs / share)
    return ExportedConfig(
        parameters, config.model_type, head_dim, rotary.rotation.layout == "interleaved",
        config.max_position_embeddings, plain.compared_length, layers, {} if layers is None else old_form(config),
    )  # fmt: skip


def compare_rotation(reader: str, layers: str | None, read: ReadRotation, rotary: HostRotary, length: int) -> Reading:
    """Compare the rotation ``read`` by an engine with that of transformers.

    Raises:
        Unread: the engine rotates another number of channels.
    """
    own, own_scale = rotary.rotation.numbers, rotary.logit_scale * rotary.rotation.amplitude**2
    if len(read.frequencies) != len(own):
        raise Unread(f"it rotates {2 * len(read.frequencies)} channels of a head, transformers {2 * len(own)}")
    same = all(math.isclose(a, b, rel_tol=ROUNDING, abs_tol=0) for a, b in zip(read.frequencies, own, strict=True))
    phase = 0.0 if same else length * max(abs(a - b) for a, b in zip(read.frequencies, own, strict=True))
    scale = read.amplitude**2 / own_scale
    exact = same and math.isclose(scale, 1.0, rel_tol=2 * ROUNDING)
    return Reading(reader, "exact" if exact else "different", layers, scale, phase, length)
