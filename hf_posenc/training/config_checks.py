"""Checks of the settings of a fine-tuning run, each of which says what may be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_posenc.core.lengths import MAX_LENGTH
from hf_posenc.errors import MissingPackage, TrainingImpossible, nearest, shown


@dataclass(frozen=True)
class Interval:
    """Numbers from ``least`` to ``most``, with or without these two."""

    least: float
    most: float
    without_least: bool = False
    without_most: bool = False

    def __str__(self) -> str:
        low = f"above {self.least:g} and" if self.without_least else f"from {self.least:g}"
        return f"{low} {'to less than' if self.without_most else 'up to' if self.without_least else 'to'} {self.most:g}"

    def check(self, name: str, value: Any) -> None:
        """Refuse a value outside, or one that is no number.

        Raises:
            TrainingImpossible: it is.
        """
        given = number(value)
        above = given > self.least if self.without_least else given >= self.least
        below = given < self.most if self.without_most else given <= self.most
        if not (above and below):
            raise TrainingImpossible(f"{name}={shown(value)} was asked for. Choose a number {self}.")


LEARNING_RATE = Interval(0, 1e3, without_least=True)  # a step of more than that is a typing error
EPOCHS = Interval(0, 1e4, without_least=True)


def check_duration(steps: Any, epochs: Any) -> None:
    """Refuse a run without an end, or with two.

    Raises:
        TrainingImpossible: neither or both of steps and epochs are given, or there are no more than 0 epochs.
    """
    if (steps is None) == (epochs is None):
        raise TrainingImpossible(f"steps={steps} and epochs={epochs} were asked for. Choose one of the two.")
    if epochs is not None:
        EPOCHS.check("epochs", epochs)


def check_stages(length: int, stages: int, packing: str) -> None:
    """Refuse rows that cannot be halved often enough, or whose documents are kept apart by their positions.

    Raises:
        TrainingImpossible: they cannot grow.
    """
    parts = 2 ** min(stages - 1, MAX_LENGTH.bit_length())
    if length % parts or length < 2 * parts:
        raise TrainingImpossible(
            f"length_stages={stages} was asked for, which cuts rows of {length} tokens into {parts} at first. "
            f"Choose fewer stages, or a length that is a multiple of {parts} and at least twice it."
        )
    if stages > 1 and packing == "separate":
        raise TrainingImpossible(
            "Rows that grow are cut within documents, and packing='separate' keeps documents whole. "
            "Choose packing='joined', or length_stages=1."
        )


def check_groups(length: int, groups: int, stages: int) -> None:
    """Refuse rows that cannot be divided into groups of an even number of tokens.

    Raises:
        TrainingImpossible: they cannot.
    """
    if groups > 1 and length % (2 * groups):
        raise TrainingImpossible(
            f"attention_groups={groups} was asked for, which divides rows of {length} tokens into groups that are "
            f"shifted by half of one. Choose a length that is a multiple of {2 * groups}, or other groups."
        )
    if groups > 1 and stages > 1:
        raise TrainingImpossible(
            f"attention_groups={groups} and length_stages={stages} were asked for, and groups divide rows of one "
            "length. Choose attention_groups=1, or length_stages=1."
        )


def check_trackers(names: Any) -> None:
    """Refuse experiment trackers that transformers does not know, or whose package is not installed.

    Raises:
        TrainingImpossible: there is one.
        MissingPackage: a package is not installed.
    """
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    check_names("report_to", names, "trackio")
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise TrainingImpossible(
                f"There is no experiment tracker {shown(name)}.{nearest(name, INTEGRATION_TO_CALLBACK)} "
                f"Choose one of {', '.join(sorted(INTEGRATION_TO_CALLBACK))}."
            )
        if name not in get_available_reporting_integrations():
            raise MissingPackage(f"Reporting to {name} needs its package, which is not installed. pip install {name}")


def check_count(name: str, value: Any, least: int, most: int) -> None:
    """Refuse a value that is no whole number from ``least`` to ``most``.

    Raises:
        TrainingImpossible: it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise TrainingImpossible(f"{name}={shown(value)} was asked for. Choose a whole number from {least} to {most}.")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse a name that is none of the choices.

    Raises:
        TrainingImpossible: it is none.
    """
    if value not in choices:
        raise TrainingImpossible(
            f"There is no {name} {shown(value)}.{nearest(value, choices)} "
            f"Choose {', '.join(choices[:-1])} or {choices[-1]}."
        )


def check_names(name: str, values: Any, example: str) -> None:
    """Refuse what is no list of names.

    Raises:
        TrainingImpossible: it is none.
    """
    if not isinstance(values, (tuple, list)) or not all(isinstance(value, str) for value in values):
        raise TrainingImpossible(f"{name}={shown(values)} was asked for. Give names, such as ({example!r},).")


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither true nor false.

    Raises:
        TrainingImpossible: it is neither.
    """
    if not isinstance(value, bool):
        raise TrainingImpossible(f"{name}={shown(value)} was asked for. Choose True or False.")


def number(value: Any) -> float:
    """A number unchanged; NaN, which lies in no range, for any other value."""
    return float("nan") if isinstance(value, bool) or not isinstance(value, (int, float)) else value
