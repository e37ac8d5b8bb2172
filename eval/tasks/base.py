"""Base classes of lm-eval tasks that sweep over context lengths.

A document is one target, or one key, *at all lengths*: one request per length (and depth). So every length is measured
on the same targets, curves are paired, each metric has a standard error over documents, and lm-eval's ``--limit n``
means n at every length.

`LengthSweep` is the base of all tasks, `DepthSweep` that of tasks that place something at several depths.
`PerplexityTask` is the shortest example.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, ClassVar

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask

from hf_posenc.checkpoints.hub import hub_options, of_other_names
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import tokenizer_of as named_tokenizer
from hf_posenc.eval.errors import TaskOptionOutOfRange, TextTooShort
from hf_posenc.eval.lm.load import register_models
from hf_posenc.eval.tasks.prompts import REPEATED, refuse_prompting, repeated_prompts
from hf_posenc.eval.tasks.sweep import Sweep, metric_name
from hf_posenc.eval.texts.measured_text import MeasuredText, measured_text
from hf_posenc.eval.texts.sampling import placed
from hf_posenc.eval.texts.text_filler import sentences_of
from hf_posenc.eval.texts.windows import Tokenized, tokenized_documents, windows_at
from hf_posenc.texts import rendered

register_models()  # lm-eval loads a task file named by its path before it looks up the model type

Doc = dict[str, Any]
Metric = tuple[Callable[[Sequence[Any]], float], bool]


def perplexity(losses: Sequence[float]) -> float:
    """Exponential of the mean loss."""
    return math.exp(mean(losses))


class LengthSweep(ConfigurableTask):
    """A task with one request per length and document; subclasses write documents, requests and scores."""

    request_type = "loglikelihood"
    metrics: ClassVar[dict[str, Metric]] = {}
    """Metric to its aggregation and whether higher is better."""
    reads: ClassVar[frozenset[str]] = frozenset()
    """Of the settings `PARTICULAR` of the sweep, those that the task reads."""
    generation: ClassVar[dict[str, Any]] = {"until": [], "do_sample": False}
    """How text is generated, where it is; lm-eval's ``gen_kwargs`` are put over it."""

    def __init__(self, config: dict[str, Any]) -> None:
        metadata = dict(config["metadata"])
        self.sweep = Sweep.of(metadata)
        self.tokenizer = tokenizer_of(metadata)
        metadata |= asdict(self.sweep)  # the results name every setting, defaults included
        if isinstance(self.sweep.text, MeasuredText):
            metadata["text"] = self.sweep.text.label
        metadata["tokenizer"] = getattr(self.tokenizer, "name_or_path", "")  # the object itself is no JSON
        metadata.pop("pretrained", None)
        kept = {name: value for name, value in config.items() if name != "class"}
        generates = self.request_type == "generate_until"  # else lm-eval knows of no such type, and asks for none
        kind = {"output_type": "generate_until", "generation_kwargs": dict(self.generation)} if generates else {}
        super().__init__(config=kept | {"output_type": "loglikelihood", "metadata": metadata, "metric_list": []} | kind)

    def own_text(self) -> tuple[Tokenized, ...]:
        """The documents of the text that is measured on, as tokens."""
        text = measured_text(self.sweep.text, field=self.sweep.field, separator=self.sweep.separator)
        return tokenized_documents(self.tokenizer, text)

    def cells(self) -> Sequence[tuple[int, float | None]]:
        """Every length, with every depth if the task has one: a document has a request, or several, for each."""
        return [(length, None) for length in self.sweep.lengths]

    reads_text = True
    """Whether a text that is given is read."""

    @cached_property
    def own_sentences(self) -> tuple[str, ...]:
        """The sentences of the user's text; none without one.

        Raises:
            TextTooShort: there is none in it.
        """
        if self.sweep.text is None:
            return ()
        text = measured_text(self.sweep.text, field=self.sweep.field, separator=self.sweep.separator)
        found = sentences_of(rendered(document, self.tokenizer) for document in text.documents)
        if not found:
            raise TextTooShort("The text has no sentence to hide a needle in. Pass a text with words.")
        return found

    def documents(self) -> list[Doc]:
        """One document per sample, each with ``name`` and the fields its requests need.

        Documents that are not independent of each other, such as windows of one book, have the same ``cluster``.
        """
        raise NotImplementedError

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Arguments of the requests of a document, in the order of the cells."""
        raise NotImplementedError

    def scores(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Metric values of one document."""
        raise NotImplementedError

    def download(self, dataset_kwargs: Any = None, **_: Any) -> None:
        """Generate the documents; nothing is downloaded."""
        found = [{"cluster": doc["name"], **doc} for doc in self.documents()]
        self.dataset = {"test": Dataset.from_list(found)}
        if repeated := repeated_prompts(found, self.cells()):
            self.config.metadata |= {REPEATED: repeated}

    def build_all_requests(
        self, *, limit: int | None = None, world_size: int = 1, tokenizer_name: str = "", **options: Any
    ) -> None:
        """Build the requests of this process.

        lm-eval's request cache is keyed by the name of the task alone and would answer with prompts of other lengths:
        a digest of the documents is put where its key has the tokenizer.

        Raises:
            TaskOptionOutOfRange: there are fewer documents than processes, and one would have nothing to do.
            NotMeasurable: examples, a conversation or a system instruction are asked for, and prompts have none.
        """
        refuse_prompting(self.config, options)
        documents = min(len(self.eval_docs), int(limit) if limit else len(self.eval_docs))
        if documents < world_size:
            raise TaskOptionOutOfRange(
                f"{self.config.task} has {documents} documents for {world_size} processes. "
                "Raise samples or keys, or launch fewer processes."
            )
        salted = f"{tokenizer_name}-{self.digest()}" if options.get("cache_requests") else tokenizer_name
        super().build_all_requests(limit=limit, world_size=world_size, tokenizer_name=salted, **options)

    def digest(self) -> str:
        """Digest of documents, request type and settings."""
        content = [asdict(self.sweep), self.request_type, *self.eval_docs]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def construct_requests(self, doc: Doc, ctx: Any, metadata: Any = None, **_: Any) -> list[Instance]:
        """The requests of one document."""
        return [
            Instance(request_type=self.request_type, doc=doc, arguments=arguments, idx=number, metadata=metadata)
            for number, arguments in enumerate(self.arguments(doc))
        ]

    def process_results(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Metric values of one document, by the names of `metric_name`."""
        return self.scores(doc, results)

    def aggregation(self) -> dict[str, Callable[[Sequence[float]], float]]:
        """Aggregation of each metric over documents."""
        return {name: self.metrics[metric][0] for metric, name in self.names()}

    def higher_is_better(self) -> dict[str, bool]:
        """Whether higher is better, by metric."""
        return {name: self.metrics[metric][1] for metric, name in self.names()}

    def names(self) -> list[tuple[str, str]]:
        """Each metric with its name at every length."""
        return [(metric, metric_name(metric, length)) for metric in self.metrics for length in self.sweep.lengths]


class DepthSweep(LengthSweep):
    """A task with one request per length and depth: something is placed in the text at every depth."""

    def cells(self) -> list[tuple[int, float]]:
        """Every length with every depth."""
        return [(length, depth) for length in self.sweep.lengths for depth in self.sweep.depths]

    def names(self) -> list[tuple[str, str]]:
        """Each metric at every length, and in every cell."""
        return super().names() + [(m, metric_name(m, *cell)) for m in self.metrics for cell in self.cells()]


class PerplexityTask(LengthSweep):
    """Loss of the same last tokens after ever more text."""

    metrics: ClassVar[dict[str, Metric]] = {"nll": (mean, False), "ppl": (perplexity, False)}

    def documents(self) -> list[Doc]:
        """Windows of held-out text, or of the user's."""
        lengths, scored = self.sweep.lengths, self.sweep.scored
        return [
            {**source.named(w.end), "contexts": list(w.contexts), "target": w.target}
            for source, near in placed(self.own_text(), self.sweep.samples, self.sweep.longest, self.sweep.seed)
            for w in windows_at(source, self.tokenizer, near, lengths=lengths, scored=scored)
        ]

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Context and target at every length."""
        return [(context, doc["target"]) for context in doc["contexts"]]

    def scores(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Loss in nats/token."""
        losses = zip(self.sweep.lengths, (-score / self.sweep.scored for score, _ in results), strict=True)
        return {metric_name(m, length): loss for length, loss in losses for m in ("nll", "ppl")}


def tokenizer_of(metadata: dict[str, Any]) -> Any:
    """The tokenizer that sizes the prompts: an object, or the name or path of one."""
    given = metadata.get("tokenizer") or metadata.get("pretrained")
    if isinstance(given, str):
        hub = hub_options(metadata)  # a revision among them is that of the model
        own = of_other_names(hub) if metadata.get("tokenizer") else hub
        return named_tokenizer(ModelName.of(given, hub=own), **own)
    if not callable(given):
        raise TaskOptionOutOfRange(
            'The task has no tokenizer to size its prompts with. Pass --metadata \'{"tokenizer": "path or name"}\'.'
        )
    return given
