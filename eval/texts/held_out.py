"""The held-out text of a fine-tuning run, on which models of the run are measured by default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from hf_posenc.checkpoints.held_out_texts import measured_run
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import tokenizer_of
from hf_posenc.errors import BadComparison, shown
from hf_posenc.eval.catalogue import read_by
from hf_posenc.eval.settings import Measurement
from hf_posenc.eval.texts.measured_text import HELD_OUT, MeasuredText, module_text
from hf_posenc.texts import Document, TextSource

SettingsT = TypeVar("SettingsT", bound=Measurement)


@dataclass(eq=False)
class HeldOutText(MeasuredText):
    """The held-out documents of a run, their tokens ``[token]``, and the settings of the run's windows."""

    tokens: Tensor
    windows: dict[str, Any]

    @classmethod
    def of_run(cls, folder: Path) -> HeldOutText:
        """Read the held-out text of the run in ``folder``."""
        from hf_posenc.training.held_out import HeldOut

        record, tokenizer = HeldOut.of_run(folder), tokenizer_of(ModelName.of(folder))
        corpus = record.read(tokenizer, TextSource(tuple(map(module_text, HELD_OUT))))
        begins = corpus.starts.tolist()
        ends = [*begins[1:], len(corpus.tokens)]
        documents = tuple(
            Document(f"document {number}", tokenizer.decode(corpus.tokens[begin:end], skip_special_tokens=True))
            for number, (begin, end) in enumerate(zip(begins, ends, strict=True), 1)
        )
        windows = {
            "lengths": tuple(sorted(record.lengths)), "longest": max(record.lengths), "samples": record.windows,
            "scored": record.scored,
        }  # fmt: skip
        label = str(record) if record.texts else "sources of Python's standard library"
        return cls(documents, label, record.digest, corpus.tokens, windows)


def with_held_out(settings: SettingsT, models: Iterable[Any]) -> SettingsT:
    """Add the held-out text and windows of a fine-tuning run to the settings, if one of the models is from a run.

    The settings are unchanged if the user names a text, or if no task reads a text.
    """
    if settings.text is not None or (settings.tasks and not read_by("text", settings.tasks)):
        return settings
    runs = dict.fromkeys(folder for model in models if (folder := measured_run(model)) is not None)
    texts = {folder: HeldOutText.of_run(folder) for folder in runs}
    if len({text.digest for text in texts.values()}) > 1:
        raise BadComparison(
            f"The runs {', '.join(shown(str(folder)) for folder in texts)} held out different texts. Name one to "
            "measure all of them on (--text)."
        )
    return next((of_windows(settings, text) for text in texts.values()), settings)


def of_windows(settings: SettingsT, text: HeldOutText) -> SettingsT:
    """Settings that measure a held-out text as its run did; settings of the user stay."""
    windows = {name: value for name, value in text.windows.items() if name not in settings.model_fields_set}
    lengths = settings.lengths or windows["lengths"]
    if "longest" in windows:
        windows["longest"] = max(windows["longest"], *lengths)
    if min(lengths) <= windows.get("scored", 0):
        del windows["scored"]
    return settings.model_copy(update={**windows, "text": text})
