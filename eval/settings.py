"""What is measured: the settings that `evaluate`, `compare`, a YAML file and the command line share, declared once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from hf_posenc.errors import BadComparison, PosEncError, UnknownOption, WrongKind, shown
from hf_posenc.eval.tasks.sweep import Count, Lengths, Sampled
from hf_posenc.schemes.entry import json_or_text

FILES = ("data",)
"""Options of tasks that name files, of which several may be given; the key of a cell has their content."""
METADATA = frozenset({"tokenizer"})
"""What the metadata of a task also holds, and what is an argument."""
ELSEWHERE = frozenset({
    "num_fewshot", "apply_chat_template", "fewshot_as_multiturn", "system_instruction", "gen_kwargs"
})  # fmt: skip
"""Options of lm-eval's own command. A task that is not ours would take them for its metadata, without any effect."""


def mapping_of(given: Any) -> Mapping[str, Any]:
    """The same mapping, of the same type."""
    if not isinstance(given, Mapping):
        raise WrongKind(f"Options must be a dictionary of names and values, got {shown(given)}. Pass a dictionary.")
    return given


Options = Annotated[Any, Field(default_factory=dict), AfterValidator(mapping_of)]
Own = TypeVar("Own", bound="Measurement")


class Measurement(Sampled):
    """Settings of every measurement, besides those of `Sampled`.

    Attributes:
        tasks: lm-eval task names; by default loss and passkey retrieval.
        lengths: sequence lengths in tokens; by default from the trained length to beyond what the model reads.
        longest: context in tokens before every scored token; by default the longest of the lengths. With the same
            value, a length that is added later scores the same tokens.
        limit: documents per length, for a quick look.
        text: one or several files, folders and ``hub:NAME:SPLIT``, or `datasets` objects; by default held-out modules
            of the standard library. A record of jsonl, json or parquet is a document; no window crosses two.
        text_field: column of a record that holds its text.
        include_path: folder of further task files, which can run code.
        trust_tasks: whether task files from outside the installed packages may run.
        options: further options of tasks, such as ``data`` or ``scoring``; see `hf_posenc.eval.tasks.sweep`.
    """

    model_config = ConfigDict(extra="forbid")
    errors: ClassVar[Mapping[str, type[PosEncError]]] = {"tasks": BadComparison, "include_path": WrongKind}

    tasks: tuple[str, ...] = ()
    lengths: Lengths = ()
    longest: Count | None = None
    limit: Count | None = None
    text: Any = None
    text_field: str = "text"
    include_path: str | Path | None = None
    trust_tasks: bool = False
    options: Options

    @model_validator(mode="after")
    def without_double_meaning(self) -> Measurement:
        """The same, and a refusal of settings among the options of tasks."""
        for name in self.options.keys() & ELSEWHERE:
            raise UnknownOption(f"{name} is an option of lm-eval's own command. Run python -m hf_posenc.eval with it.")
        for name in self.options.keys() & (type(self).model_fields.keys() | METADATA):
            raise BadComparison(f"{name} is not an option of a task. Pass it as a separate argument.")
        return self

    def sweep(self) -> dict[str, Any]:
        """The numbers of a sweep, for the metadata of tasks, less the lengths and ``longest``."""
        return self.model_dump(include=set(Sampled.model_fields))

    def metadata(self, text: Any, tokenizer: Any) -> dict[str, Any]:
        """The metadata of tasks: the sweep, the text and how it is read, and their further options."""
        return {
            **self.sweep(), "lengths": list(self.lengths), "longest": self.longest, "text": text,
            "field": self.text_field, "tokenizer": tokenizer, **self.options,
        }  # fmt: skip

    def measure(self) -> dict[str, Any]:
        """The numbers of a sweep, and the limit: what can be part of a cell's key."""
        return self.sweep() | {"limit": self.limit}


class EvaluateSettings(Measurement):
    """Settings of `hf_posenc.eval.evaluate`, besides those of every measurement.

    Attributes:
        log_samples: keep every request and response in ``raw``.
    """

    log_samples: bool = False


class CompareSettings(Measurement):
    """Settings of `hf_posenc.eval.compare`, besides those of every measurement.

    Every scheme is patched once, for the longest length or for ``longest``, and that model is measured at all lengths.

    Attributes:
        against: label of a line. The others are compared with it, document by document, and tables mark those that are
            significantly better or worse. The name of a scheme will do if one line alone has it.
        rank: rank the lines on each task at the longest length; see `hf_posenc.eval.results.ranking`.
        tune: choose the options of each scheme by the loss on ``dev_text``.
        dev_text: a text to choose options on, named as ``text`` is; by default modules of the standard library that are
            not in the default text. Naming one switches ``tune`` on.
        budget: candidates of each scheme, drawn at random from a finer grid; by default all of a small grid.
        fresh: measure the cells in the folder again, and replace them.
    """

    against: str | None = None
    rank: bool = False
    tune: bool = False
    dev_text: Any = None
    budget: Count | None = None
    fresh: bool = False

    @model_validator(mode="after")
    def with_effect(self) -> CompareSettings:
        """The same, and a refusal of a budget for nothing."""
        if self.budget is not None and not self.tuned:
            raise BadComparison(
                f"budget is {self.budget}, which has no effect without --tune. Pass --tune (tune=True) as well."
            )
        return self

    @property
    def tuned(self) -> bool:
        """Whether options are chosen."""
        return self.tune or self.dev_text is not None


def split(kind: type[Own], given: Mapping[str, Any], settings: Own | None = None) -> tuple[Own, dict[str, Any]]:
    """Keywords of a call as settings, in which they replace those that are given, and what is left for the model."""
    own = {name: value for name, value in given.items() if name in kind.model_fields}
    before = {} if settings is None else {name: getattr(settings, name) for name in settings.model_fields_set}
    return kind.of(before | own), {name: value for name, value in given.items() if name not in own}


def named(kind: type[Measurement], words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``["seed=1", "scoring=generate"]`` as settings of a kind, and as options of tasks, which all other names are."""
    own: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for word in words:
        written, _, text = word.partition("=")
        name, value = written.replace("-", "_"), json_or_text(text)
        if name == "options" and isinstance(value, Mapping):
            options |= value
        elif name in kind.model_fields:
            own[name] = value
        elif name in FILES and name in options:  # one after the other
            options[name] = [*([options[name]] if isinstance(options[name], str) else options[name]), value]
        else:
            options[written] = value
    return own, options
