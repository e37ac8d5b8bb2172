"""Make the record of a scheme from its class: needs, options, docstrings, and whether it has parameters."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, get_type_hints

from hf_posenc.core.record import NEEDS, CachedKeys, SchemeRecord

if TYPE_CHECKING:
    from hf_posenc.schemes.base import Scheme


def record_of(
    cls: type[Scheme], name: str, *, aliases: tuple[str, ...], zero_shot: bool, cache: CachedKeys, paper: str
) -> SchemeRecord:
    """The record of a class while it is registered, when functions defined below it may not exist yet."""
    about = inspect.cleandoc(cls.__doc__ or "")  # not inherited: a base class has another formula
    sentence, stop, _ = " ".join(about.split()).partition(". ")
    text = inspect.getdoc(sys.modules[cls.__module__]) or about
    return SchemeRecord(
        name,
        aliases,
        needs=tuple(need for need in NEEDS if getattr(cls, f"needs_{need}")),
        learned=None,
        zero_shot=zero_shot,
        recipe=cls.recipe,
        cache=cache,
        paper=paper,
        title=text.partition("\n")[0],
        summary=sentence + stop.strip(),
        about=about,
        text=text,
        formula=inspect.cleandoc(vars(cls).get("formula", "")),
        options=_options_of(cls),
        target=f"{cls.__module__}:{cls.__qualname__}",
    )


def has_parameters(cls: type[Scheme]) -> bool | None:
    """Whether a scheme adds trainable parameters, with its default options, to a model that rotates or has a table.

    The scheme is built for two small models. None if it cannot be built for either, for example because an option has
    no default. The caller's random generator is not advanced.
    """
    import torch

    from hf_posenc.core.geometry import Geometry, HostRotary, Rotation, geometric

    shapes = {"heads": 4, "kv_heads": 2, "head_dim": 16, "width": 64, "layers": 4}
    rotary = HostRotary(Rotation(geometric(10_000.0, 16)), 10_000.0)
    trainable, dtype = set(), torch.get_default_dtype()
    for positions in ({"rotary": rotary}, {"table": 16}):
        geometry = Geometry(**shapes, causal=True, trained_length=16, target_length=32, **positions)  # type: ignore[arg-type]
        with torch.random.fork_rng(devices=[]):
            try:
                trainable.add(any(parameter.requires_grad for parameter in cls(geometry).parameters()))
            except Exception:  # whatever a scheme raises for a model that it does not support
                continue
            finally:
                torch.set_default_dtype(dtype)  # a constructor that changes it is found by a check, not hidden here
    return any(trainable) if trainable else None


def _options_of(cls: type[Scheme]) -> dict[str, tuple[str, str]]:
    from hf_posenc.schemes.options import written

    hints = get_type_hints(cls.__init__, include_extras=True)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[2:]  # after self and geometry
    for name in (p.name for p in parameters if p.name not in hints):
        raise TypeError(f"Option {name!r} of {cls.__name__} has no type. Annotate it, as in {name}: float = 1.0")
    return {p.name: (written(hints[p.name]), "" if p.default is p.empty else repr(p.default)) for p in parameters}
