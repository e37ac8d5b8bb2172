"""Base classes of lm-eval tasks that sweep over context lengths.

A document is one target, or one key, *at all lengths*: one request per length (and depth). So every length is measured
on the same targets, curves are paired, each metric has a standard error over documents, and lm-eval's ``--limit n``
means n at every length.

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

from hf_posenc.checkpoints.hub import hub_options, of_other_names
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
"""Options of lm-eval that shape prompts."""

register_models()  # lm-eval loads a task file named by its path before it looks up the model type

Doc = dict[str, Any]
Cell = tuple[int, float | None]
"""A length, and a depth where the task has one."""
Metric = tuple[Callable[[Sequence[Any]], float], bool]


def perplexity(losses: Sequence[float]) -> float:
    """Exponential of the mean loss."""
    return math.exp(mean(losses))


LOSS: dict[str, Metric] = {"nll": (mean, False), "ppl": (perplexity, False)}


class LengthSweep(ConfigurableTask):
    """A task with one request per length and document; subclasses write documents, requests and scores."""

    request_type = "loglikelihood"
    deep = False
    """Whether something is placed in the text, at every depth."""
    reads_text = True
    """Whether a text that is given is read."""
    Options: ClassVar[type[TaskOptions]] = TaskOptions
    """The options of the task besides those of the sweep."""
    metrics: ClassVar[dict[str, Metric]] = {}
    """Metric to its aggregation and whether higher is better."""
    at_lengths: ClassVar[frozenset[str]] = frozenset()
    """Metrics that have no value at a depth."""
    generation: ClassVar[dict[str, Any]] = {"until": [], "do_sample": False}
    """How text is generated, where it is; lm-eval's ``gen_kwargs`` are put over it."""

    def __init__(self, config: dict[str, Any]) -> None:
        metadata = dict(config["metadata"])
        self.sweep, self.name = Sweep.of(metadata), config["task"]
        self.tokenizer = tokenizer_of(metadata)
        given = {name: value for name, value in metadata.items() if value is not None}
        self.options: Any = self.Options.of(self.defaults(given) | given)
        metadata |= vars(self.sweep) | vars(self.options)  # the results name every setting, defaults included
        if isinstance(self.sweep.text, MeasuredText):
            metadata["text"] = self.sweep.text.label
        metadata["tokenizer"] = getattr(self.tokenizer, "name_or_path", "")  # the object itself is no JSON
        metadata.pop("pretrained", None)
        kept = {name: value for name, value in config.items() if name != "class"}
        generates = self.request_type == "generate_until"  # else lm-eval knows of no such type, and asks for none
        kind = {"output_type": "generate_until", "generation_kwargs": dict(self.generation)} if generates else {}
        super().__init__(config=kept | {"output_type": "loglikelihood", "metadata": metadata, "metric_list": []} | kind)

    def defaults(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults of options that depend on other options."""
        return {}

    @property
    def text(self) -> MeasuredText:
        """The text that is measured on."""
        return measured_text(self.sweep.text, field=self.sweep.field)

    def own_windows(self, size: int) -> Iterator[tuple[Tokenized, int]]:
        """Documents of the text, and where windows end that have ``size`` tokens before: ``samples`` in all."""
        for source, ends in placed(
            tokenized_documents(self.tokenizer, self.text), self.sweep.samples, size, self.sweep.seed
        ):
            yield from ((source, end) for end in ends)

    @cached_property
    def own_sentences(self) -> tuple[str, ...]:
        """The sentences of the user's text; none without one."""
        given = () if self.sweep.text is None else self.text.documents
        return sentences_of(document.content for document in given)

    def cells(self) -> list[Cell]:
        """Every length, with every depth if the task has one: a document has a request, or several, for each."""
        depths: Sequence[float | None] = self.sweep.depths if self.deep else (None,)
        return [(length, depth) for length in self.sweep.lengths for depth in depths]

    def documents(self) -> list[Doc]:
        """One document per sample, each with ``name`` and the fields its requests need.

        Documents that are not independent of each other, such as windows of one book, have the same ``cluster``.
        """
        raise NotImplementedError

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Arguments of the requests of a document, in the order of the cells.

        Those of ``loglikelihood`` are context and target, two texts. Together they have at most the cell's length in
        tokens, special ones included (`count`); more than the model's ``max_length`` is refused. `TokenTask` asks by
        token ids, of an exact length.
        """
        raise NotImplementedError

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, Any]]:
        """Metric values of one document, in the order of the cells."""
        raise NotImplementedError

    def count(self, text: str, **options: Any) -> int:
        """Tokens of a text with the special ones that evaluation adds."""
        return len(self.tokenizer(text, verbose=False, **options)["input_ids"])

    def download(self, dataset_kwargs: Any = None, **_: Any) -> None:
        """Generate the documents; nothing is downloaded."""
        found = [{"cluster": doc["name"], **doc} for doc in self.documents()]
        self.dataset = {"test": Dataset.from_list(found)}

    def build_all_requests(
        self, *, limit: int | None = None, world_size: int = 1, cache_requests: bool = False, **options: Any
    ) -> None:
        """Build the requests of this process.

        lm-eval's request cache is left out: it is keyed by the name of the task alone and would answer with prompts of
        other lengths. Refused is what would be recorded and not used: examples, a conversation, a system instruction.
        """
        asked = {"num_fewshot": self.config.num_fewshot, **options}
        if (name := next(filter(asked.get, SHAPING), None)) is not None:
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
        """Each metric with its name at every length, and in every cell that has a depth."""
        at_depths = [metric for metric in self.metrics if metric not in self.at_lengths]
        lengths = [(metric, (length, None)) for metric in self.metrics for length in self.sweep.lengths]
        deep = [(metric, cell) for metric in at_depths for cell in self.cells()] if self.deep else []
        return [(metric, metric_name(metric, *cell)) for metric, cell in [*lengths, *deep]]


class PerplexityTask(LengthSweep):
    """Loss of the same last tokens after more and more text."""

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
    """A loss under both its names; `perplexity` is taken when documents are aggregated."""
    return {"nll": loss, "ppl": loss}


def named_scores(cells: Sequence[Cell], scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metric values of cells by the names of `metric_name`, and at every length their mean over depths."""
    deep: dict[str, Any] = {}
    by_length: dict[str, list[Any]] = {}
    for (length, depth), found in zip(cells, scores, strict=True):
        for metric, value in found.items():
            by_length.setdefault(metric_name(metric, length), []).append(value)
            if depth is not None:
                deep[metric_name(metric, length, depth)] = value
    return deep | {name: mean(some) for name, some in by_length.items()}


def tokenizer_of(metadata: dict[str, Any]) -> Any:
    """The tokenizer that sizes the prompts: an object, or the name or path of one."""
    given = metadata.get("tokenizer") or metadata.get("pretrained")
    if isinstance(given, str):
        hub = hub_options(metadata)  # a revision among them is that of the model
        own = of_other_names(hub) if metadata.get("tokenizer") else hub
        return named_tokenizer(ModelName.of(given, hub=own))
    if not callable(given):
        raise TaskOptionOutOfRange(
            'The task has no tokenizer to size its prompts with. Pass --metadata \'{"tokenizer": "path or name"}\'.'
        )
    return given
