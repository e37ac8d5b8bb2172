"""The held-out text of a fine-tuning run: a model of a run is measured on its windows where no text is named."""

from __future__ import annotations

from collections.abc import Iterable
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

Own = TypeVar("Own", bound=Measurement)


class HeldOutText(MeasuredText):
    """The documents that a run held out, their tokens ``[token]``, and the settings that make its windows."""

    def __init__(
        self, documents: tuple[Document, ...], label: str, digest: str, tokens: Tensor, windows: dict[str, Any]
    ) -> None:
        super().__init__(documents, label, digest)
        self.tokens, self.windows = tokens, windows

    @classmethod
    def of_run(cls, folder: Path) -> HeldOutText:
        """Read the held-out text of a run again."""
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


def with_held_out(settings: Own, models: Iterable[Any]) -> Own:
    """The settings, with text and windows of the fine-tuning run that is among the models.

    They are unchanged where a text is named, no model is of a run, or no task reads a text.
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


def of_windows(settings: Own, text: HeldOutText) -> Own:
    """The settings on a held-out text: as the run measured it, but for those that are given."""
    windows = {name: value for name, value in text.windows.items() if name not in settings.model_fields_set}
    lengths = settings.lengths or windows["lengths"]
    if "longest" in windows:
        windows["longest"] = max(windows["longest"], *lengths)
    if min(lengths) <= windows.get("scored", 0):
        del windows["scored"]
    return settings.model_copy(update={**windows, "text": text})
