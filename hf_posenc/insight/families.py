"""Find out whether a family of models of the installed transformers, or a checkpoint, can be patched.

A family is built from its default configuration, as a stand-in without trained weights. It is ``exact`` if two
measurements hold (`hf_posenc.patches.general.blindness`): without its positions the model does not see the order of
tokens, and with its measured rotation put back its outputs return.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import transformers
from transformers import CONFIG_MAPPING, logging
from transformers.models.auto import modeling_auto

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.core.geometry import Geometry, LayerKind
from hf_posenc.core.record import SchemeRecord
from hf_posenc.errors import PosEncError, UnsupportedModel, nearest, shown
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
"""Classes of model types without a language-model head, such as models that also read images."""


@dataclass(frozen=True)
class Family:
    """Result for one family of models.

    Attributes:
        model_type: ``model_type`` of its configuration.
        kind: kind of the class: a decoder (``causal``), an encoder with a masked-language-model head (``masked``), or
            an encoder–decoder (``seq2seq``).
        verdict: ``exact``; ``attention layers`` if other layers also carry order; ``refused``; or ``not built`` if
            transformers cannot build a model from its default configuration.
        detail: its rotations and tables, for both stacks if they differ; or the reason of a refusal.
        schemes: number of schemes that are defined on it, for an encoder–decoder on both stacks.
    """

    model_type: str
    kind: Kind
    verdict: Verdict
    detail: str
    schemes: int = 0


def family(model_type: str, kind: Kind) -> Family:
    """Examine a family, from the default configuration of its class."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model = default_model(model_type, kind)
    except Exception as error:  # a constructor may raise anything on a default configuration
        return Family(model_type, kind, "not built", _first_sentence(error))
    finally:
        logging.set_verbosity(level)
    return look_at(model, model_type, kind)


def default_model(model_type: str, kind: Kind) -> Any:
    """Build a model from the default configuration of a family, without trained weights."""
    class_name = next((names[model_type] for names in (CLASSES[kind], *OTHERS) if model_type in names), None)
    if class_name is None:
        raise UnsupportedModel(f"transformers has no text model of type {model_type!r}. Choose another.")
    cls = getattr(transformers, class_name if isinstance(class_name, str) else class_name[0])
    config = CONFIG_MAPPING[model_type]()
    if kind == "causal" and hasattr(config, "is_decoder"):
        config.is_decoder = True
    with without_weights():
        return cls(config)


def one(name: str) -> list[Family]:
    """Examine a ``model_type`` of transformers, in every kind that it has, or the family of a checkpoint.

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
    return [look_at(model, config.model_type, of_class[0] if of_class else None)]


def look_at(model: Any, model_type: str, kind: Kind | None) -> Family:
    """Examine a model for its family. A class that transformers does not know is of the kind that is observed."""
    try:
        stacks = geometries(model)
        kind = kind or observed_kind(stacks)
    except PosEncError as error:
        return Family(model_type, kind or "causal", "refused", _first_sentence(error))
    except Exception as error:  # a forward pass may raise anything with a default configuration
        return Family(model_type, kind or "causal", "not built", f"{type(error).__name__}: {_first_sentence(error)}")
    partly = any(geometry.mixes_otherwise for geometry in stacks.values())
    words = {name: described(geometry) for name, geometry in stacks.items()}
    alike = len(set(words.values())) == 1
    detail = next(iter(words.values())) if alike else " | ".join(f"{name}: {text}" for name, text in words.items())
    return Family(model_type, kind, "attention layers" if partly else "exact", detail, len(defined_on(stacks)))


def observed_kind(stacks: Mapping[str, Geometry]) -> Kind:
    """Return the kind of a model with these stacks."""
    if len(stacks) > 1:
        return "seq2seq"
    return "causal" if all(geometry.causal for geometry in stacks.values()) else "masked"


def schemes_of(model_type: str) -> list[SchemeRecord]:
    """Return the schemes that are defined on a family; if it has several kinds, on its encoders.

    Raises:
        UnsupportedModel: transformers does not know the family, or cannot build a text model from its defaults.
    """
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModel(
            f"transformers knows no model type {shown(model_type)}.{nearest(model_type, CONFIG_MAPPING)} "
            "Choose another, such as 'llama'."
        )
    kinds: tuple[Kind, ...] = "masked", "causal", "seq2seq"
    kind: Kind = next((one for one in kinds if model_type in CLASSES[one]), "causal")
    try:
        return defined_on(geometries(default_model(model_type, kind)))
    except PosEncError:
        raise
    except Exception as error:  # a class may raise anything on its default configuration
        raise UnsupportedModel(
            f"The default configuration of {model_type!r} builds no text model ({type(error).__name__}: {error}). "
            "Examine a checkpoint: hf-posenc list --models --model NAME."
        ) from error


def defined_on(stacks: Mapping[str, Geometry]) -> list[SchemeRecord]:
    """Return the schemes that are defined on all stacks of a model."""
    return [record for record in list_schemes() if not any(map(record.unmet_needs, stacks.values()))]


def geometries(model: Any) -> dict[str, Geometry]:
    """Return the geometry of a model, or of each stack of an encoder–decoder, by name.

    Raises:
        PosEncError: the model cannot be patched.
    """
    stacks = {}
    for name, part in (stacks_of(model) or {"": model}).items():
        base, adapter = base_model_of(part)
        length = adapter.trained_length(base.config)
        stacks[name] = adapter.geometry(base.config, trained_length=length, target_length=length)
    return stacks


def described(geometry: Geometry) -> str:
    """Describe the rotations, windows, tables and biases of a model in words."""
    uniform = LayerKind(geometry.heads, geometry.kv_heads, geometry.head_dim, geometry.rotary)
    kinds = geometry.kinds or (uniform,) * geometry.layers
    layers = Counter(str(kind) for kind in kinds if kind.rotary or not kind.sees_all)
    parts = [f"{count} × {text}" for text, count in layers.items()]
    parts += [] if geometry.table is None else [f"table of {geometry.table:,} positions"]
    parts += [] if geometry.slopes is None else [f"{geometry.layers} × linear bias (ALiBi)"]
    parts += ["a learned bias of the distance"] if geometry.biased else []
    return "; ".join(parts) or "no positions"


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split()).partition(". ")[0][:200]
