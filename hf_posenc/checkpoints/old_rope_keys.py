"""RoPE parameters of a ``config.json`` in the form that was used before transformers 5, beside today's.

    today     rope_parameters: {rope_type, rope_theta, partial_rotary_factor, factor, …}
    before    rope_theta, partial_rotary_factor, rope_scaling: {rope_type, factor, …}

A reader that knows the old form alone would take no notice of ``rope_parameters``, load without an error, and rotate as
if nothing were scaled. transformers 5 reads both to the same parameters.

Where types of layers rotate differently, the old form had the scaling of layers that see all keys, and a base of the
others. It could say no more, and of ModernBERT no scaling at all: what it cannot say is not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_NAME

from hf_posenc.checkpoints.native_parameters import INSTEAD
from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import NotExpressible
from hf_posenc.patches.shared.rope_parameters import UNSCALED, by_layer_type

BESIDE = ("rope_theta", "partial_rotary_factor")  # stood outside ``rope_scaling``
LENGTH = "original_max_position_embeddings"
OTHER_NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}
"""Model types whose configurations called these otherwise."""
READ_OUTSIDE = ("longrope",)  # RoPE types whose `LENGTH` stood outside as well
READ_INSIDE = ("proportional",)  # whose share of rotated pairs mlx-lm looks for in ``rope_scaling``


BASE_OF_LOCAL = {"gemma3_text": "rope_local_base_freq", "gemma3n_text": "rope_local_base_freq", "olmo3": "rope_theta"}
"""Model types whose types of layers rotated differently before transformers 5, and the base of their local layers."""
UNSCALED_BEFORE_5 = ("modernbert", "modernbert-decoder")
"""Model types whose types of layers had a base each then, and no scaling."""


def old_form(config: Any) -> dict[str, Any]:
    """The keys that say in the old form what the ``rope_parameters`` of a configuration say; none where it cannot."""
    sets = by_layer_type(config.rope_parameters)
    if None in sets:
        return old_form_of(config.rope_parameters, config.model_type)
    base, local = BASE_OF_LOCAL.get(config.model_type), sets.get("sliding_attention")
    if base is None or local is None or local["rope_type"] != UNSCALED:
        return {}
    old = {base: local["rope_theta"]} | old_form_of(sets["full_attention"], config.model_type)
    return old if old[base] == local["rope_theta"] else {}


def is_misread_before_5(config: Any) -> bool:
    """Whether a release before transformers 5 knows a model and cannot be told how this configuration rotates it."""
    known = config.model_type in (*BASE_OF_LOCAL, *UNSCALED_BEFORE_5)
    return known and not old_form(config) and config.rope_parameters != type(config)().rope_parameters


def old_form_of(parameters: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """That of one set of parameters."""
    names, kind = OTHER_NAMES.get(model_type, {}), parameters["rope_type"]
    outside = BESIDE[:1] if kind in READ_INSIDE else BESIDE
    scaling = {name: value for name, value in parameters.items() if name not in outside}
    beside = {names.get(name, name): parameters[name] for name in BESIDE if name in parameters}
    if kind in READ_OUTSIDE:
        beside[LENGTH] = parameters[LENGTH]
    return {**beside, "rope_scaling": None if kind == UNSCALED else scaling}


def check_both_forms(config: Any) -> None:
    """Make sure that transformers reads a configuration with both forms as it reads today's alone."""
    getattr(config, "validate", bool)()  # as saving does
    read = type(config).from_dict(config.to_dict() | old_form(config)).rope_parameters
    if read != config.rope_parameters:
        raise NotExpressible(
            f"transformers reads the RoPE parameters {config.rope_parameters} of a {config.model_type} as {read}. "
            + INSTEAD
        )


def add_old_form(folder: Path, config: Any, section: str | None = None) -> None:
    """Write the old form into the ``config.json`` that was saved to ``folder``, beside ``rope_parameters``."""
    file = folder / CONFIG_NAME
    content = read_object(file)
    (content if section is None else content[section]).update(old_form(config))
    write_json(file, content)
