"""The topics by name; every module of `hf_posenc.insight.lessons.demonstrations` registers its own."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

import torch

from hf_posenc.errors import UnknownTopic, nearest
from hf_posenc.insight.lessons.finding import Finding, Table

Found = tuple[str, "Iterable[Table]", str]
Demonstration = Callable[..., Found]


@dataclass(frozen=True)
class Topic:
    """A demonstration.

    Attributes:
        name: one word.
        title: the question it answers.
        schemes: those it is shown on unless others are asked for; empty where it is about none in particular.
        run: schemes to what is shown, tables and conclusion; without arguments where it takes no schemes.
    """

    name: str
    title: str
    schemes: tuple[str, ...]
    run: Demonstration


_TOPICS: dict[str, Topic] = {}


def topic(name: str, title: str, *, schemes: tuple[str, ...] = ()) -> Callable[[Demonstration], Demonstration]:
    """Register a demonstration.

    Raises:
        ValueError: there is one of that name.
    """

    def decorate(run: Demonstration) -> Demonstration:
        if name in _TOPICS:
            raise ValueError(f"There is a topic {name!r} already. Choose another name.")
        _TOPICS[name] = Topic(name, title, schemes, run)
        return run

    return decorate


def topics() -> dict[str, Topic]:
    """All demonstrations, by name."""
    _load()
    return dict(sorted(_TOPICS.items()))


def explain(name: str, schemes: Iterable[str] = ()) -> Finding:
    """Run a demonstration.

    Args:
        name: of the topic.
        schemes: to show it on, instead of its own; as `hf_posenc.patch_model` takes them.

    Raises:
        UnknownTopic: there is none of that name, or it is about no schemes and some are given.
        PosEncError: a scheme is refused.
    """
    known = topics()
    if name not in known:
        raise UnknownTopic(f"No topic is called {name!r}.{nearest(name, known)} `hf-posenc explain` lists all of them.")
    chosen, asked = known[name], tuple(schemes)
    if asked and not chosen.schemes:
        raise UnknownTopic(f"Topic {name!r} is not about a scheme of your choice. Leave --scheme out.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shows, tables, conclusion = chosen.run(asked or chosen.schemes) if chosen.schemes else chosen.run()
    return Finding(name, chosen.title, " ".join(shows.split()), tuple(tables), " ".join(conclusion.split()))


@lru_cache(maxsize=1)
def _load() -> None:
    package = import_module("hf_posenc.insight.lessons.demonstrations")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
