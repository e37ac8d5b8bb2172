"""lm-eval's model type ``hf_posenc``: a Hugging Face model under a position scheme, and nothing cut in silence.

    base model → scheme → PEFT adapter              so that the adapter meets the positions it was trained with

It scores as lm-eval's own ``hf`` does; without a scheme the numbers are the same. It differs where long contexts need
it: an over-long request raises, only scored positions go through the head, the softmax is float32, and requests of
unlike length never share a padded batch (a scheme that looks at the length would see the padding).
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

from hf_posenc import describe, from_pretrained, patch_model
from hf_posenc.block import option_names
from hf_posenc.errors import NotPatched, RequestTooLong, UnknownOption, UnsupportedModel, nearest
from hf_posenc.eval.errors import NotMeasurable, StaleCache, TaskOptionOutOfRange
from hf_posenc.eval.scoring import suffix_logits, token_scores, unwrapped

Scored = tuple[float, bool]
TokenRequest = tuple[tuple[str, str], list[int], list[int]]
ON_OVERFLOW = ("error", "truncate")
LENGTHS = ("factor", "target_length", "trained_length", "layers")
OTHER_WEIGHTS = ("delta", "autogptq", "gptqmodel")


class PosEncLM(HFLM):
    """A causal language model under a scheme.

    Args:
        pretrained: a name, a path, or a live model, patched or not.
        scheme: what position is; None leaves the model as it comes.
        factor, target_length, trained_length, layers: as in `hf_posenc.patch_model`.
        max_length: longest request in tokens; by default the patched model's target, else the model's own length.
        on_overflow: ``"error"`` raises `RequestTooLong`; ``"truncate"`` cuts from the left as ``hf`` does.
        tick: called after each scored request, for progress bars; with it lm-eval's own bar is off.
        **options: options of the scheme, and everything `HFLM` takes.
    """

    def __init__(
        self,
        pretrained: str | transformers.PreTrainedModel,
        scheme: str | None = None,
        on_overflow: str = "error",
        tick: Callable[[], None] | None = None,
        softmax_dtype: str | torch.dtype | None = "float32",
        **options: Any,
    ) -> None:
        if on_overflow not in ON_OVERFLOW:
            raise TaskOptionOutOfRange(
                f"on_overflow must be one of {ON_OVERFLOW}, got {on_overflow!r}. Choose one of them."
            )
        self.scheme = scheme
        self.patch = {name: options.pop(name) for name in (*LENGTHS, *option_names(scheme)) if name in options}
        self.on_overflow, self.tick = on_overflow, tick
        if not isinstance(pretrained, str):
            refuse_unused(options if scheme else self.patch | options)
            if scheme is not None:
                patch_model(pretrained, scheme, **self.patch)
            hold_ties(pretrained)
        options.setdefault("device", "cuda" if torch.cuda.is_available() else "cpu")  # `HFLM` takes CUDA for granted
        try:
            super().__init__(pretrained, softmax_dtype=softmax_dtype, **options)
        finally:
            release_ties(getattr(self, "_model", pretrained))

    def _create_model(self, pretrained: str, *, peft: str | None = None, **loading: Any) -> None:
        """Load by `hf_posenc.from_pretrained`, which puts scheme and PEFT adapter on in the right order."""
        for name in OTHER_WEIGHTS:
            if loading.pop(name, None):
                raise NotMeasurable(
                    f"{name} is not supported under a scheme. Load the model yourself and pass the object."
                )
        placing = ("parallelize", "gpus", "max_memory_per_gpu", "max_cpu_memory", "offload_folder")
        placed = {name: loading.pop(name) for name in placing if name in loading}
        loading |= self._get_accelerate_args(device_map=loading.pop("device_map", None), **placed)
        given = {name: value for name, value in loading.items() if value not in (None, "", False)}
        self._model = from_pretrained(
            pretrained, model_class=self.AUTO_MODEL_CLASS, scheme=self.scheme, peft_adapter=peft, **self.patch, **given
        )
        hold_ties(self._model)

    @property
    def report(self) -> dict[str, Any]:
        """What was patched, or an empty dictionary."""
        try:
            return describe(self.model).to_dict()
        except (NotPatched, UnsupportedModel):  # without a scheme, any model may be measured
            return {}

    @property
    def scheme_name(self) -> str:
        """What tables call it."""
        return self.report.get("scheme", "unscaled")

    @property
    def max_length(self) -> int:
        """The longest request: as given, else the patched model's target, else the model's own length."""
        return self._max_length or self.report.get("target_length") or super().max_length

    @max_length.setter
    def max_length(self, value: int) -> None:
        self._max_length = value

    def check_length(self, tokens: int, kind: str) -> None:
        """Refuse what would have to be cut.

        Raises:
            RequestTooLong: ``tokens`` exceed `max_length`, and cutting was not asked for.
        """
        if tokens > self.max_length and self.on_overflow == "error":
            raise RequestTooLong(
                f"A {kind} request of {tokens} tokens exceeds max_length {self.max_length}. "
                "Ask for a longer max_length, patch with a larger target_length, or pass on_overflow=truncate."
            )

    def _loglikelihood_tokens(
        self, requests: list[TokenRequest], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[Scored]:
        same_input: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, (_, context, target) in enumerate(requests):
            self.check_length(len(context) + len(target) - 1, "loglikelihood")  # the last token is never an input
            same_input[tuple((context + target)[-(self.max_length + 1) : -1])].append(number)
        answers: dict[int, Scored] = {}
        batch_size = self.batch_size if isinstance(self.batch_size, int) else 1
        bar = tqdm(total=len(requests), desc="Scoring", disable=disable_tqdm or self.tick is not None)
        for inputs in equal_lengths(same_input, batch_size):
            keep = max(len(requests[number][2]) for row in inputs for number in same_input[row])
            for row, logits in zip(inputs, self.logits(inputs, keep), strict=True):
                for number in same_input[row]:
                    request, _, target = requests[number]
                    answers[number] = self.answer(logits[-len(target) :], target)
                    self.cache_hook.add_partial("loglikelihood", request, answers[number])
                    self.ticked()
                    bar.update()
        bar.close()
        return [answers[number] for number in range(len(requests))]

    def logits(self, inputs: Sequence[tuple[int, ...]], keep: int) -> torch.Tensor:
        """The last ``keep`` positions' logits of rows of one length: ``[row, keep, vocabulary]``."""
        with torch.no_grad(), self.precision():
            return suffix_logits(self.model, torch.tensor(inputs, device=self.device), keep)

    def precision(self) -> torch.autocast:
        """The mixed precision asked for, or none."""
        dtype = self.mixed_precision_dtype
        return torch.autocast(device_type=self.device.type, dtype=dtype, enabled=dtype is not None)

    def answer(self, logits: torch.Tensor, target: list[int]) -> Scored:
        """Log-likelihood of ``target``, and whether greedy decoding would have written it."""
        scores, greedy = token_scores(logits, torch.tensor(target, device=logits.device))
        return float(scores.sum()), bool(greedy.all())

    def ticked(self) -> None:
        """Tell the progress bar that one more request is done."""
        if self.tick is not None:
            self.tick()

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts. lm-eval cuts one past `max_length` into windows that do not see each other."""
        for (text,) in (request.args for request in requests):
            self.check_length(len(self.tok_encode(text)), "loglikelihood_rolling")
        return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations; prompt and new tokens together must fit."""
        for prompt, options in (request.args for request in requests):
            new = options.get("max_gen_toks", options.get("max_new_tokens", self.max_gen_toks))
            self.check_length(len(self.tok_encode(prompt)) + new, "generate_until")
        return super().generate_until(requests, disable_tqdm=disable_tqdm)

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Refuse a response cache whose path does not tell schemes apart: its keys hold the request alone."""
        path = str(getattr(cache_hook.dbdict, "filename", ""))
        if self.scheme_name != "unscaled" and self.scheme_name not in path:
            raise StaleCache(
                f"The response cache {path!r} does not tell schemes apart. Put {self.scheme_name!r} into its path."
            )
        super().set_cache_hook(cache_hook)

    def get_model_info(self) -> dict[str, Any]:
        """What makes a number repeatable: scheme, lengths, versions, size."""
        model = unwrapped(self.model)
        return {
            **{f"posenc_{name}": value for name, value in self.report.items()},
            "max_length": self.max_length,
            "model_num_parameters": model.num_parameters(),
            "model_dtype": str(model.dtype),
            "model_revision": self.revision,
            "peft": self.peft,
            "versions": {name: version(name) for name in ("hf-posenc", "torch", "transformers", "lm_eval")},
        }


def equal_lengths(inputs: dict[tuple[int, ...], list[int]], size: int) -> Iterator[list[tuple[int, ...]]]:
    """Batches of at most ``size`` inputs of one length, longest first, so that memory runs out early or never."""
    by_length: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for row in inputs:
        by_length[len(row)].append(row)
    for length in sorted(by_length, reverse=True):
        rows = by_length[length]
        yield from (rows[i : i + size] for i in range(0, len(rows), size))


def hold_ties(model: Any) -> None:
    """Keep `HFLM` from tying weights anew: they are tied already, and PEFT's trained copies of tied ones cannot be."""
    model.__dict__["tie_weights"] = lambda: None


def release_ties(model: Any) -> None:
    """Undo `hold_ties`."""
    getattr(model, "__dict__", {}).pop("tie_weights", None)


def refuse_unused(options: dict[str, Any]) -> None:
    """Refuse what `HFLM` would silently ignore beside a live model.

    Raises:
        UnknownOption: such an option was given.
    """
    known = set(inspect.signature(HFLM.__init__).parameters) - {"self", "kwargs", "peft", *OTHER_WEIGHTS}
    for name in options.keys() - known:
        raise UnknownOption(
            f"{name!r} has no effect on this model, which is loaded already.{nearest(name, known)} "
            "Leave it out; scheme= makes room for factor and options of a scheme."
        )
