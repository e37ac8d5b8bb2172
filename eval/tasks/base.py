"""Base classes of lm-eval tasks that sweep over context lengths.

A document is one target, or one key, *at all lengths*: it has one request per length (and depth). Every length is
therefore measured on the same targets, curves are paired, each metric has a standard error over documents, and
lm-eval's ``--limit n`` means n documents at every length.

`LengthSweep` is the base of all tasks; `PerplexityTask` is the shortest example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask

from hf_posenc.checkpoints.hub import hub_options, shared_hub_options
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import tokenizer_of as named_tokenizer
from hf_posenc.eval.errors import NotMeasurable, TaskOptionOutOfRange
from hf_posenc.eval.lm.load import register_models
from hf_posenc.eval.tasks.sweep import Sweep, TaskOptions, metric_name
from hf_posenc.eval.texts.haystack import sentences_of
from hf_posenc.eval.texts.measured_text import MeasuredText, measured_text
from hf_posenc.eval.texts.sampling import Tokenized, placed
from hf_posenc.eval.texts.windows import tokenized_documents, windows_at

SHAPING = ("num_fewshot", "apply_chat_template", "system_instruction")
"""Options of lm-eval that change prompts."""

register_models()  # lm-eval loads a task file that is named by its path before it looks up the model type

Doc = dict[str, Any]
Cell = tuple[int, float | None]
"""A length, and a depth if the task has depths."""
Metric = tuple[Callable[[Sequence[Any]], float], bool]


def perplexity(losses: Sequence[float]) -> float:
    """Exponential of the mean loss."""
    return math.exp(mean(losses))


LOSS: dict[str, Metric] = {"nll": (mean, False), "ppl": (perplexity, False)}


class LengthSweep(ConfigurableTask):
    """A task with one request per length and document; subclasses write documents, requests and scores."""

    request_type = "loglikelihood"
    deep = False
    """Whether the task places something in the text, at every depth."""
    Options: ClassVar[type[TaskOptions]] = TaskOptions
    """Options of the task besides those of the sweep."""
    metrics: ClassVar[dict[str, Metric]] = {}
    """Aggregation of each metric, and whether higher is better."""
    at_lengths: ClassVar[frozenset[str]] = frozenset()
    """Metrics that have no value at a single depth."""
    generation: ClassVar[dict[str, Any]] = {"until": [], "do_sample": False}
    """Default arguments of generation; lm-eval's ``gen_kwargs`` override them."""

    def __init__(self, config: dict[str, Any]) -> None:
        metadata = dict(config["metadata"])
        self.sweep, self.name = Sweep.of(metadata), config["task"]
        self.tokenizer = tokenizer_of(metadata)
        user_options = {name: value for name, value in metadata.items() if value is not None}
        self.options: Any = self.Options.of(self.defaults(user_options) | user_options)
        metadata |= vars(self.sweep) | vars(self.options)  # the results name every setting, defaults included
        if isinstance(self.sweep.text, MeasuredText):
            metadata["text"] = self.sweep.text.label
        metadata["tokenizer"] = getattr(self.tokenizer, "name_or_path", "")  # the object cannot be written as JSON
        metadata.pop("pretrained", None)
        base = {name: value for name, value in config.items() if name != "class"}
        base |= {"output_type": "loglikelihood", "metadata": metadata, "metric_list": []}
        if self.request_type == "generate_until":  # lm-eval does not know our other types, and need not
            base |= {"output_type": "generate_until", "generation_kwargs": dict(self.generation)}
        super().__init__(config=base)

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuse wrong options before anything is measured."""
        cls.Options.of(options)

    def defaults(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults of options that depend on other options."""
        return {}

    @property
    def text(self) -> MeasuredText:
        """The measured text."""
        return measured_text(self.sweep.text, field=self.sweep.field)

    def own_windows(self, size: int) -> Iterator[tuple[Tokenized, int]]:
        """Yield the document and the end of ``samples`` windows of ``size`` tokens."""
        for source, ends in placed(
            tokenized_documents(self.tokenizer, self.text), self.sweep.samples, size, self.sweep.seed
        ):
            yield from ((source, end) for end in ends)

    @cached_property
    def own_sentences(self) -> tuple[str, ...]:
        """The sentences of the user's text; empty without a text."""
        documents = () if self.sweep.text is None else self.text.documents
        return sentences_of(document.content for document in documents)

    def cells(self) -> list[Cell]:
        """Every length, with every depth if the task has depths; a document has one or several requests per cell."""
        depths: Sequence[float | None] = self.sweep.depths if self.deep else (None,)
        return [(length, depth) for length in self.sweep.lengths for depth in depths]

    def documents(self) -> list[Doc]:
        """One document per sample, each with ``name`` and the fields its requests need.

        Documents that are not independent of each other, such as windows of one book, have the same ``cluster``.
        """
        raise NotImplementedError

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Arguments of the requests of a document, in the order of the cells.

        A ``loglikelihood`` request has two texts, context and target. Together they have at most the cell's length in
        tokens, including special tokens (`count`). A request longer than the model's ``max_length`` is refused.
        `TokenTask` has requests of token ids instead, with an exact length.
        """
        raise NotImplementedError

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, Any]]:
        """Metric values of one document, in the order of the cells."""
        raise NotImplementedError

    def count(self, text: str, **options: Any) -> int:
        """Number of tokens of a text, including the special tokens that the tokenizer adds."""
        return len(self.tokenizer(text, verbose=False, **options)["input_ids"])

    def download(self, dataset_kwargs: Any = None, **_: Any) -> None:
        """Generate the documents; nothing is downloaded."""
        documents = [{"cluster": doc["name"], **doc} for doc in self.documents()]
        self.dataset = {"test": Dataset.from_list(documents)}

    def build_all_requests(
        self, *, limit: int | None = None, world_size: int = 1, cache_requests: bool = False, **options: Any
    ) -> None:
        """Build the requests of this process.

        lm-eval's request cache is not used: its key is the name of the task alone, so it would return prompts of other
        lengths. Few-shot examples, chat templates and system instructions are refused, because lm-eval would record
        them although they have no effect.
        """
        shaping = {"num_fewshot": self.config.num_fewshot, **options}
        if (name := next(filter(shaping.get, SHAPING), None)) is not None:
            raise NotMeasurable(
                f"{self.config.task} writes prompts of its own, of exactly the length asked for, so {name} has no "
                "effect on them. Leave it out; lm-eval's own tasks take it."
            )
        documents = min(len(self.eval_docs), int(limit) if limit else len(self.eval_docs))
        if documents < world_size:
            raise TaskOptionOutOfRange(
                f"{self.config.task} has {documents} documents for {world_size} processes. "
                "Raise samples or keys, or launch fewer processes."
            )
        super().build_all_requests(limit=limit, world_size=world_size, **options)

    def construct_requests(self, doc: Doc, ctx: Any, metadata: Any = None, **_: Any) -> list[Instance]:
        """The requests of one document."""
        return [
            Instance(request_type=self.request_type, doc=doc, arguments=arguments, idx=number, metadata=metadata)
            for number, arguments in enumerate(self.arguments(doc))
        ]

    def process_results(self, doc: Doc, results: Sequence[Any]) -> dict[str, Any]:
        """Metric values of one document, by the names of `metric_name`."""
        return named_scores(self.cells(), self.scores(doc, results))

    def aggregation(self) -> dict[str, Callable[[Sequence[Any]], float]]:
        """Aggregation of each metric over documents."""
        return {name: self.metrics[metric][0] for metric, name in self.names()}

    def higher_is_better(self) -> dict[str, bool]:
        """Whether higher is better, by metric."""
        return {name: self.metrics[metric][1] for metric, name in self.names()}

    def names(self) -> list[tuple[str, str]]:
        """Pairs of a metric and its name, at every length and in every cell with a depth."""
        at_depths = [metric for metric in self.metrics if metric not in self.at_lengths]
        lengths = [(metric, (length, None)) for metric in self.metrics for length in self.sweep.lengths]
        deep = [(metric, cell) for metric in at_depths for cell in self.cells()] if self.deep else []
        return [(metric, metric_name(metric, *cell)) for metric, cell in [*lengths, *deep]]


class PerplexityTask(LengthSweep):
    """Loss of the same last tokens after contexts of increasing length."""

    metrics = LOSS

    def documents(self) -> list[Doc]:
        """Windows of held-out text, or of the user's."""
        sweep = self.sweep
        documents = tokenized_documents(self.tokenizer, self.text)
        return [
            {**source.named(w.end), "contexts": list(w.contexts), "target": w.target}
            for source, near in placed(documents, sweep.samples, sweep.longest, sweep.seed)
            for w in windows_at(source, self.tokenizer, near, lengths=sweep.lengths, scored=sweep.scored)
        ]

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Context and target at every length."""
        return [(context, doc["target"]) for context in doc["contexts"]]

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Loss in nats/token."""
        return [loss_and_perplexity(-score / self.sweep.scored) for score, _ in results]


def loss_and_perplexity(loss: float) -> dict[str, float]:
    """A loss as ``nll`` and as ``ppl``; `perplexity` is computed when documents are aggregated."""
    return {"nll": loss, "ppl": loss}


def named_scores(cells: Sequence[Cell], scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metric values of cells by the names of `metric_name`, and their means over depths at every length."""
    at_depths: dict[str, Any] = {}
    by_length: dict[str, list[Any]] = {}
    for (length, depth), cell_scores in zip(cells, scores, strict=True):
        for metric, value in cell_scores.items():
            by_length.setdefault(metric_name(metric, length), []).append(value)
            if depth is not None:
                at_depths[metric_name(metric, length, depth)] = value
    return at_depths | {name: mean(values) for name, values in by_length.items()}


def tokenizer_of(metadata: dict[str, Any]) -> Any:
    """The tokenizer that counts the tokens of prompts, which metadata has as an object or names."""
    tokenizer = metadata.get("tokenizer") or metadata.get("pretrained")
    if isinstance(tokenizer, str):
        hub = hub_options(metadata)  # a revision in these belongs to the model
        own = shared_hub_options(hub) if metadata.get("tokenizer") else hub
        return named_tokenizer(ModelName.of(tokenizer, hub=own))
    if not callable(tokenizer):
        raise TaskOptionOutOfRange(
            'The task has no tokenizer to size its prompts with. Pass --metadata \'{"tokenizer": "path or name"}\'.'
        )
    return tokenizer
