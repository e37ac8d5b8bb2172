"""Survey the model families of the installed transformers: what the general adapter observes of each.

Every family is built from its default configuration, as a stand-in without weights of its own. One that can be observed
is exact by two measurements (`hf_posenc.patches.general.blindness`): with its positions off nothing tells it the order
of its tokens, and with its measured rotation put back its outputs return.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose
from typing import Any, Literal

import transformers
from transformers import CONFIG_MAPPING, logging
from transformers.models.auto import modeling_auto

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.core.geometry import Geometry, LayerKind, geometric
from hf_posenc.errors import PosEncError
from hf_posenc.patches.general.stand_in import without_weights
from hf_posenc.patching.state import base_model_of, stacks_of
from hf_posenc.schemes.registry import list_schemes

Kind = Literal["causal", "masked", "seq2seq"]
Verdict = Literal["exact", "attention layers", "refused", "not built"]

CLASSES: dict[Kind, Any] = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
}

OTHERS = (modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, modeling_auto.MODEL_MAPPING_NAMES)
"""Classes of types without a language-model head of their own, such as those that read images as well."""


@dataclass(frozen=True)
class Family:
    """What is known of one family of models.

    Attributes:
        model_type: as in its configuration.
        kind: of the class that was looked at: a decoder (``causal``), an encoder with a masked-language-model head, or
            an encoder–decoder (``seq2seq``).
        verdict: ``exact``; ``attention layers`` where other layers carry order too; ``refused``; or ``not built`` where
            transformers makes no model of its default configuration.
        detail: its rotations and tables, of both stacks where they differ; the reason, where it is refused.
        schemes: how many are defined on it alone, of an encoder–decoder on both stacks.
        native: the schemes that its own positions are, by their names here; empty where it is not patched.
    """

    model_type: str
    kind: Kind
    verdict: Verdict
    detail: str
    schemes: int = 0
    native: str = ""


def survey() -> Iterator[Family]:
    """All families of the installed transformers with a language-model head, by kind, in alphabetical order."""
    for kind, classes in CLASSES.items():
        for model_type in sorted(classes):
            yield family(model_type, kind)


def family(model_type: str, kind: Kind) -> Family:
    """One family, from the default configuration of its class."""
    named = CLASSES[kind].get(model_type) or next(names[model_type] for names in OTHERS if model_type in names)
    cls = getattr(transformers, named if isinstance(named, str) else named[0])
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        config = CONFIG_MAPPING[model_type]()
        if kind == "causal" and hasattr(config, "is_decoder"):
            config.is_decoder = True
        with without_weights():
            model = cls(config)
    except Exception as error:  # whatever a constructor says of a configuration that nobody filled in
        return Family(model_type, kind, "not built", _first_sentence(error))
    finally:
        logging.set_verbosity(level)
    return look_at(model, model_type, kind)


def one(name: str) -> list[Family]:
    """A family by its ``model_type`` in transformers, of every kind that it has; or the family of a checkpoint.

    Raises:
        PosEncError: there is no checkpoint of that name, or its configuration cannot be read.
    """
    kinds: list[Kind] = [kind for kind, classes in CLASSES.items() if name in classes]
    if kinds:
        return [family(name, kind) for kind in kinds]
    if name in CONFIG_MAPPING and any(name in names for names in OTHERS):
        return [family(name, "causal")]
    checkpoint = Checkpoint.open(name)
    config, cls = checkpoint.hf_config(), checkpoint.model_class()
    with without_weights():
        model = cls(config)
    of_class: list[Kind] = [kind for kind, classes in CLASSES.items() if cls.__name__ in classes.values()]
    kind: Kind = of_class[0] if of_class else "causal"
    return [look_at(model, config.model_type, kind)]


def look_at(model: Any, model_type: str, kind: Kind) -> Family:
    """What is known of the family of a model."""
    stacks = stacks_of(model)
    try:
        seen = {name: look_at_stack(part) for name, part in (stacks or {"": model}).items()}
    except PosEncError as error:
        return Family(model_type, kind, "refused", _first_sentence(error))
    except Exception as error:  # whatever a forward pass of a model that nobody filled in says
        return Family(model_type, kind, "not built", f"{type(error).__name__}: {_first_sentence(error)}")
    defined = sum(not any(map(record.unmet_needs, seen.values())) for record in list_schemes())
    partly = any(geometry.mixes_otherwise for geometry in seen.values())
    words = {name: described(geometry) for name, geometry in seen.items()}
    alike = len(set(words.values())) == 1
    detail = next(iter(words.values())) if alike else " | ".join(f"{name}: {text}" for name, text in words.items())
    beside = temperature(model.config)
    own = ", ".join(dict.fromkeys(name for geometry in seen.values() for name in native_schemes(geometry, beside)))
    return Family(model_type, kind, "attention layers" if partly else "exact", detail, defined, own)


def look_at_stack(model: Any) -> Geometry:
    """The geometry of a model with one base model.

    Raises:
        PosEncError: it cannot be patched.
    """
    base, adapter = base_model_of(model)
    length = adapter.trained_length(base.config)
    geometry = adapter.geometry(base.config, trained_length=length, target_length=length)
    return geometry


def described(geometry: Geometry) -> str:
    """Rotations, windows, tables and biases of a model, in words."""
    alike = LayerKind(geometry.heads, geometry.kv_heads, geometry.head_dim, geometry.rotary)
    kinds = geometry.kinds or (alike,) * geometry.layers
    layers = Counter(str(kind) for kind in kinds if kind.rotary or not kind.sees_all)
    parts = [f"{count} × {text}" for text, count in layers.items()]
    parts += [] if geometry.table is None else [f"table of {geometry.table:,} positions"]
    parts += [] if geometry.slopes is None else [f"{geometry.layers} × linear bias (ALiBi)"]
    parts += ["a learned bias of the distance"] if geometry.biased else []
    return "; ".join(parts) or "no positions"


def temperature(config: Any) -> str:
    """``"all"`` or ``"unrotated"`` layers whose queries the model scales as `llama4_temp` does; empty for none."""
    text = config.get_text_config()
    if "llama_4_scaling_beta" in str(getattr(text, "rope_parameters", "")):
        return "all"
    return "unrotated" if getattr(text, "attn_temperature_tuning", False) else ""


def native_schemes(geometry: Geometry, scaled: str = "") -> list[str]:
    """What schemes a model's own positions are, by their names here: one for each kind of layer, and its table.

    Layers that are ``scaled`` have a `temperature`, too.
    """
    kinds = geometry.kinds or (LayerKind(geometry.heads, geometry.kv_heads, geometry.head_dim, geometry.rotary),)
    found = [] if geometry.table is None else ["learned"]
    found += [] if geometry.slopes is None else ["alibi"]
    found += ["t5"] if geometry.biased else []
    rotated = any(kind.rotary for kind in kinds)
    for kind in kinds:
        name = rotation_scheme(kind) if kind.rotary else "none" if rotated or not found else ""
        temperate = scaled == "all" or (scaled == "unrotated" and not kind.rotary)
        parts = name, "window" if kind.window else "", "llama4_temp" if temperate else ""
        found.append("+".join(filter(None, parts)))
    return [name for name in dict.fromkeys(found) if name]


def rotation_scheme(kind: LayerKind) -> str:
    """The scheme that a layer's rotation is; ``host`` where its frequencies are those of no unscaled one."""
    own: Any = kind.rotary
    frequencies, unscaled = own.rotation.frequencies, geometric(own.base, own.rotation.dims)
    if own.axes is not None:
        return "mrope"
    if not all(w == 0 or isclose(w, theirs, rel_tol=1e-4) for w, theirs in zip(frequencies, unscaled, strict=True)):
        return "host"
    if 0 in frequencies:
        return "proportional"
    return "rope" if own.rotation.dims == kind.head_dim else "partial"


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split()).partition(". ")[0][:200]
