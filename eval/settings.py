"""What is measured: the settings that `evaluate`, `compare`, a YAML file and the command line share, declared once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, model_validator

from hf_posenc.errors import BadComparison, PosEncError, UnknownOption, WrongKind
from hf_posenc.eval.tasks.sweep import Count, Lengths, Sampled
from hf_posenc.schemes.entry import json_or_text

FILES = ("data",)
"""Task options that name one or several files; the key of a cell contains the content of these files."""
LM_EVAL_OPTIONS = frozenset({
    "num_fewshot", "apply_chat_template", "fewshot_as_multiturn", "system_instruction", "gen_kwargs"
})  # fmt: skip
"""Options of lm-eval's own command. A task that is not ours would store them as metadata, without any effect."""


SettingsT = TypeVar("SettingsT", bound="Measurement")


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
    errors: ClassVar[Mapping[str, type[PosEncError]]] = {
        "tasks": BadComparison, "include_path": WrongKind, "options": WrongKind
    }  # fmt: skip

    tasks: tuple[str, ...] = ()
    lengths: Lengths = ()
    longest: Count | None = None
    limit: Count | None = None
    text: Any = None
    text_field: str = "text"
    include_path: str | Path | None = None
    trust_tasks: bool = False
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def without_double_meaning(self) -> Measurement:
        """Refuse task options that are settings of their own, or options of lm-eval's command."""
        for name in self.options.keys() & LM_EVAL_OPTIONS:
            raise UnknownOption(f"{name} is an option of lm-eval's own command. Run python -m hf_posenc.eval with it.")
        for name in self.options.keys() & (type(self).model_fields.keys() | {"tokenizer"}):
            raise BadComparison(f"{name} is not an option of a task. Pass it as a separate argument.")
        return self

    def sweep(self) -> dict[str, Any]:
        """Settings of `Sampled`, by name."""
        return self.model_dump(include=set(Sampled.model_fields))

    def metadata(self, tokenizer: Any) -> dict[str, Any]:
        """Metadata of the tasks: sweep, text, tokenizer and further options."""
        return {
            **self.sweep(), "lengths": list(self.lengths), "longest": self.longest, "text": self.text,
            "field": self.text_field, "tokenizer": tokenizer, **self.options,
        }  # fmt: skip

    def measure(self) -> dict[str, Any]:
        """Settings of `Sampled`, and the limit; the key of a cell contains those that its task reads."""
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
        against: label of the reference line. All other lines are compared with it, document by document, and tables
            mark significant differences. The name of a scheme is enough if only one line has that scheme.
        rank: rank the lines on each task at the longest length; see `hf_posenc.eval.results.ranking`.
        tune: choose the options of each scheme by the loss on ``dev_text``.
        dev_text: text to choose options on, in the same forms as ``text``; by default modules of the standard library
            that are not in the default text. Passing a text switches ``tune`` on.
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
        """Refuse a budget without tuning."""
        if self.budget is not None and not self.tuned:
            raise BadComparison(
                f"budget is {self.budget}, which has no effect without --tune. Pass --tune (tune=True) as well."
            )
        return self

    @property
    def tuned(self) -> bool:
        """Whether the comparison chooses the options of schemes."""
        return self.tune or self.dev_text is not None


def split(
    kind: type[SettingsT], arguments: Mapping[str, Any], settings: SettingsT | None = None
) -> tuple[SettingsT, dict[str, Any]]:
    """Split keyword arguments into settings, which override those of ``settings``, and arguments of the model."""
    fields = {name: value for name, value in arguments.items() if name in kind.model_fields}
    inherited = {} if settings is None else {name: getattr(settings, name) for name in settings.model_fields_set}
    return kind.of(inherited | fields), {name: value for name, value in arguments.items() if name not in fields}


def named(kind: type[Measurement], words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse ``["seed=1", "scoring=generate"]`` into settings of ``kind``, and all other names into task options."""
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for word in words:
        written, _, text = word.partition("=")
        name, value = written.replace("-", "_"), json_or_text(text)
        if name == "options" and isinstance(value, Mapping):
            options |= value
        elif name in kind.model_fields:
            settings[name] = value
        elif name in FILES and name in options:  # a repeated name adds a file
            earlier = options[name] if isinstance(options[name], list) else [options[name]]
            options[name] = [*earlier, value]
        else:
            options[written] = value
    return settings, options
