"""Parse scheme specifications: a name, ``"yarn+logn"``, a list or a class, with options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias, cast

from hf_posenc.errors import CannotCombine, OptionOutOfRange, UnknownOption, UnknownScheme, nearest, shown
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import validated
from hf_posenc.schemes.registry import scheme_class

Part: TypeAlias = "str | type[Scheme] | tuple[str, Mapping[str, Any]]"  # the string may join names by "+"
SchemeSpec: TypeAlias = "Part | Sequence[Part] | Plan"

MOST_PARTS = 16  # a longer composition is a damaged file or an attack
NUMBER = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True)
class Plan:
    """A composition as it is stored: scheme classes and their checked options."""

    parts: tuple[tuple[type[Scheme], dict[str, Any]], ...]
    stored: bool = field(default=False, compare=False)
    """Whether a saved model has it. Earlier versions saved parts without effect, too; a new patch refuses them."""

    @property
    def name(self) -> str:
        """Name of the composition, as a user writes it."""
        return "+".join(cls.record.name for cls, _ in self.parts)

    @property
    def described(self) -> str:
        """Name with the options that differ from their defaults: ``yarn(beta_fast=16.0)+logn``."""
        return "+".join(call_text(cls.record.name, changed_options(cls, options)) for cls, options in self.parts)

    def with_defaults(self) -> Plan:
        """The plan with the default of every option that was not given."""
        return Plan(tuple((cls, {**defaults_of(cls), **options}) for cls, options in self.parts))

    def to_json(self) -> list[dict[str, Any]]:
        """The plan in the format of ``config.json``."""
        return [{"name": stored_name(cls), "options": options} for cls, options in self.parts]


def stored_name(cls: type[Scheme]) -> str:
    """A scheme's name; an unregistered class has its import path, which cannot be the name of a scheme."""
    import_path = f"{cls.__module__}:{cls.__qualname__}"
    return cls.record.name if cls.record.target == import_path else import_path


@dataclass(frozen=True)
class Layout:
    """The plan of each layer."""

    default: Plan
    layers: dict[str, Plan] = field(default_factory=dict)

    @property
    def uniform(self) -> bool:
        """Whether all layers have one plan."""
        return not self.layers and not any(hasattr(cls, "layers_of") for cls, _ in self.default.parts)

    def plan_of(self, layer: int, layers: int) -> Plan:
        """The plan of one layer."""
        named = (plan for key, plan in self.layers.items() if layer in layer_numbers(key, layers))
        return plan_of_layer(next(named, self.default), layer, layers)

    def representatives(self, layers: int, kinds: Sequence[object] = ()) -> list[int]:
        """First layer of each plan in use, for each kind of layer: the layers that a probe of all plans must cover."""
        first: dict[str, int] = {}
        for layer in range(layers):
            first.setdefault(repr((self.plan_of(layer, layers), kinds[layer : layer + 1])), layer)
        return list(first.values())


def plan_of_layer(composition: Plan, layer: int, layers: int) -> Plan:
    """The plan of one layer: a pattern of layers, such as iRoPE, is replaced by its scheme for that layer."""
    parts: list[tuple[type[Scheme], dict[str, Any]]] = []
    for cls, options in composition.parts:
        pattern = getattr(cls, "layers_of", None)
        parts += [(cls, options)] if pattern is None else plan(pattern(layers, **options)[layer]).parts
    return Plan(tuple(parts), composition.stored)


def plan(spec: SchemeSpec, options: Mapping[str, Any] | None = None) -> Plan:
    """Resolve names and check options.

    Args:
        spec: a name, names joined by ``+``, a `Scheme` subclass, ``(name, options)``, or a list of these; or the plan
            of a saved model. Whitespace around a name is ignored.
        options: each is passed to the part that takes it.

    Raises:
        UnknownScheme, UnknownOption, OptionOutOfRange: a name or a value is refused.
        CannotCombine: two parts take the same option, or there are too many parts.
    """
    parts = [(cls, dict(own)) for cls, own in islice(parts_of_spec(spec), MOST_PARTS + 1)]
    if not parts:
        raise UnknownScheme(
            f"No scheme is called {shown(spec)}. `hf-posenc list` shows all of them; --import FILE adds your own."
        )
    if len(parts) > MOST_PARTS:
        raise CannotCombine(
            f"A composition has at most {MOST_PARTS} schemes, and {shown(spec)} has more. Leave some out."
        )
    for name, value in (options or {}).items():
        takers = [own for cls, own in parts if name in option_names_of(cls)]
        if len(takers) > 1:
            raise CannotCombine(
                f"Several schemes of this composition take {name!r}. Say which: scheme=[('name', {{{name!r}: …}}), …]."
            )
        if not takers and len(parts) > 1:
            names = [option for cls, _ in parts for option in option_names_of(cls)]
            raise UnknownOption(
                f"No scheme of this composition has an option {name!r}.{nearest(name, names)} "
                f"They take {', '.join(names) or 'none'}."
            )
        own = takers[0] if takers else parts[0][1]  # a single scheme refuses an unknown option below
        own[name] = value
    return Plan(tuple((cls, validated(cls, own)) for cls, own in parts), isinstance(spec, Plan))


def layout(
    spec: SchemeSpec, options: Mapping[str, Any], layers: Mapping[int | str, SchemeSpec] | None, count: int
) -> Layout:
    """The plans of a model of ``count`` layers; ``layers`` maps a number or a slice (``"3::4"``) to a scheme.

    Raises:
        OptionOutOfRange: a key names no layer, or two keys name the same layer.
    """
    if layers is not None and not isinstance(layers, Mapping):
        raise OptionOutOfRange(
            f'layers must map layers to schemes, got {shown(layers)}. Pass for example {{"3::4": "none"}}.'
        )
    plans = {str(key): plan(value) for key, value in (layers or {}).items()}
    seen: set[int] = set()
    for key in plans:
        numbers = set(layer_numbers(key, count))
        if not numbers:
            raise OptionOutOfRange(
                f"layers has the key {shown(key)}, but the layers are 0 … {count - 1}. Name one of them."
            )
        if numbers & seen:
            raise OptionOutOfRange(f"layers names layer {min(numbers & seen)} twice. Keep one of the two keys.")
        seen |= numbers
    return Layout(plan(spec, options), plans)


def layer_numbers(key: str, count: int) -> range:
    """Layer numbers of a key such as ``"3"`` or ``"1::2"``, perhaps none. Other keys raise `OptionOutOfRange`."""
    fields = [field.strip() for field in key.split(":")]
    is_read = fields != [""] and all(field == "" or NUMBER.fullmatch(field) for field in fields)
    numbers = [int(field) if field else None for field in fields] if is_read else []
    if not 1 <= len(numbers) <= 3 or numbers[2:] == [0]:
        raise OptionOutOfRange(f'layers has the key {shown(key)}. Use a layer number or a slice such as "3::4".')
    if len(numbers) > 1:
        return range(count)[slice(*numbers)]
    number = int(key)
    return range(number, number + 1) if 0 <= number < count else range(0)


def parts_of_spec(spec: SchemeSpec, *, listed: bool = False) -> Iterator[tuple[type[Scheme], Mapping[str, Any]]]:
    """The scheme classes a specification names, each with the options given with it.

    Args:
        spec: as `plan` takes it.
        listed: whether ``spec`` is an element of a list; nested lists are refused.

    Raises:
        UnknownScheme: ``spec`` names no scheme, or has another type.
    """
    if isinstance(spec, str):
        for name in spec.split("+"):
            yield scheme_class(name.strip()), {}
    elif isinstance(spec, Plan):
        yield from spec.parts
    elif inspect.isclass(spec) and issubclass(spec, Scheme) and hasattr(spec, "record"):
        yield spec, {}
    elif isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[1], Mapping):
        name, own = spec
        yield from plan(name, own).parts if "+" in str(name) else [(scheme_class(name), own)]
    elif isinstance(spec, Sequence) and not isinstance(spec, (bytes, bytearray)) and not listed:
        for part in spec:
            yield from parts_of_spec(cast(Part, part), listed=True)
    else:
        kinds = "a name, a list of names or a class registered by @register_scheme"
        raise UnknownScheme(f'A scheme is {kinds}, got {shown(spec)}. Register the class, or try "yarn".')


def option_names_of(cls: type[Scheme]) -> list[str]:
    """Names and aliases of a scheme's options."""
    return [*list(inspect.signature(cls.__init__).parameters)[2:], *cls.option_aliases]


def defaults_of(cls: type[Scheme]) -> dict[str, Any]:
    """Defaults of a scheme's options, by name; options without a default are left out."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[2:]
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def changed_options(cls: type[Scheme], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from the defaults of a scheme."""
    defaults = defaults_of(cls)
    return {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}


def call_text(name: str, options: Mapping[str, Any]) -> str:
    """A scheme with its options, written as a Python call."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else name
