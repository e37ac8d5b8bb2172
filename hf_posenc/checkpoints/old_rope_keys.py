"""Write RoPE parameters into ``config.json`` in the form used before transformers 5, beside the new form.

    new    rope_parameters: {rope_type, rope_theta, partial_rotary_factor, factor, …}
    old    rope_theta, partial_rotary_factor, rope_scaling: {rope_type, factor, …}

A program that knows only the old form would ignore ``rope_parameters``, load without an error, and rotate without the
scaling. transformers 5 reads the same parameters from both forms.

If types of layers rotate differently, the old form has the scaling of layers that see all keys, and the base of the
others. For ModernBERT it has no scaling. Parameters that the old form cannot express are not written.
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

BESIDE = ("rope_theta", "partial_rotary_factor")  # keys outside ``rope_scaling``
LENGTH = "original_max_position_embeddings"
OTHER_NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}
"""Model types with other names for these keys."""
READ_OUTSIDE = ("longrope",)  # RoPE types with `LENGTH` outside ``rope_scaling`` as well
READ_INSIDE = ("proportional",)  # RoPE types whose share of rotated pairs mlx-lm reads from ``rope_scaling``


BASE_OF_LOCAL = {"gemma3_text": "rope_local_base_freq", "gemma3n_text": "rope_local_base_freq", "olmo3": "rope_theta"}
"""Model types with RoPE parameters by type of layer before transformers 5, and the key for the base of local layers."""
UNSCALED_BEFORE_5 = ("modernbert", "modernbert-decoder")
"""Model types that had one base for each type of layer before transformers 5, and no scaling."""


def old_form(config: Any) -> dict[str, Any]:
    """The ``rope_parameters`` of a configuration as keys of the old form; empty if that cannot express them."""
    sets = by_layer_type(config.rope_parameters)
    if None in sets:
        return old_form_of(config.rope_parameters, config.model_type)
    base, local = BASE_OF_LOCAL.get(config.model_type), sets.get("sliding_attention")
    if base is None or local is None or local["rope_type"] != UNSCALED:
        return {}
    old = {base: local["rope_theta"]} | old_form_of(sets["full_attention"], config.model_type)
    return old if old[base] == local["rope_theta"] else {}


def is_misread_before_5(config: Any) -> bool:
    """Whether releases before transformers 5 know the model type, but their form cannot express its rotation."""
    known = config.model_type in (*BASE_OF_LOCAL, *UNSCALED_BEFORE_5)
    return known and not old_form(config) and config.rope_parameters != type(config)().rope_parameters


def old_form_of(parameters: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """One set of parameters as keys of the old form."""
    names, kind = OTHER_NAMES.get(model_type, {}), parameters["rope_type"]
    only_outside = BESIDE[:1] if kind in READ_INSIDE else BESIDE
    scaling = {name: value for name, value in parameters.items() if name not in only_outside}
    outside = {names.get(name, name): parameters[name] for name in BESIDE if name in parameters}
    if kind in READ_OUTSIDE:
        outside[LENGTH] = parameters[LENGTH]
    return {**outside, "rope_scaling": None if kind == UNSCALED else scaling}


def check_both_forms(config: Any) -> None:
    """Check that transformers reads the same parameters from both forms together as from the new form alone."""
    getattr(config, "validate", bool)()  # saving would do it, too
    read = type(config).from_dict(config.to_dict() | old_form(config)).rope_parameters
    if read != config.rope_parameters:
        raise NotExpressible(
            f"transformers reads the RoPE parameters {config.rope_parameters} of a {config.model_type} as {read}. "
            + INSTEAD
        )


def add_old_form(folder: Path, config: Any, section: str | None = None) -> None:
    """Add the old form to the ``config.json`` in ``folder``, in ``section`` of it if that is given."""
    file = folder / CONFIG_NAME
    content = read_object(file)
    (content if section is None else content[section]).update(old_form(config))
    write_json(file, content)
