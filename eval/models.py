"""lm-eval model types: a Hugging Face model under a position scheme, and nothing cut without saying so.

    base model → scheme → PEFT adapter              in this order, so that the adapter meets the positions it was trained with

`PosEncLM` scores as lm-eval's own ``hf`` does; without a scheme the numbers are the same. It differs where long contexts need
it: an over-long request raises, only scored positions go through the head, the softmax is float32, and requests of unlike
length never share a padded batch (a scheme that looks at the length would see the padding).
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
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from hf_posenc.errors import NotPatched, RequestTooLong, UnknownOption, UnsupportedModel, nearest
from hf_posenc.eval.errors import NotMeasurable, StaleCache, TaskOptionOutOfRange
from hf_posenc.eval.masked import masked_scores
from hf_posenc.eval.scoring import suffix_logits, token_scores, unwrapped

Scored = tuple[float, bool]
TokenRequest = tuple[tuple[str, str], list[int], list[int]]
ON_OVERFLOW = ("error", "truncate")
LENGTHS = ("factor", "target_length", "trained_length", "layers")
OTHER_WEIGHTS = ("delta", "autogptq", "gptqmodel")


@register_model("hf_posenc")
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
            raise TaskOptionOutOfRange(f"on_overflow must be one of {ON_OVERFLOW}, got {on_overflow!r}. Choose one of them.")
        self.scheme = scheme
        self.patch = {name: options.pop(name) for name in (*LENGTHS, *scheme_options(scheme)) if name in options}
        if scheme is None and self.patch:
            raise TaskOptionOutOfRange(f"{', '.join(self.patch)} given without a scheme. Pass scheme= as well.")
        self.on_overflow, self.tick = on_overflow, tick
        if not isinstance(pretrained, str):
            refuse_unused(options)
            if scheme is not None:
                from hf_posenc import patch_model

                patch_model(pretrained, scheme, **self.patch)
        super().__init__(pretrained, softmax_dtype=softmax_dtype, **options)

    def _create_model(self, pretrained: str, *, peft: str | None = None, **loading: Any) -> None:
        """Load by `hf_posenc.from_pretrained`, which puts scheme and PEFT adapter on in the right order."""
        from hf_posenc import from_pretrained

        for name in OTHER_WEIGHTS:
            if loading.pop(name, None):
                raise NotMeasurable(f"{name} is not supported under a scheme. Load the model yourself and pass the object.")
        placing = ("parallelize", "gpus", "max_memory_per_gpu", "max_cpu_memory", "offload_folder")
        placed = {name: loading.pop(name) for name in placing if name in loading}
        loading |= self._get_accelerate_args(device_map=loading.pop("device_map", None), **placed)
        given = {name: value for name, value in loading.items() if value not in (None, "", False)}
        self._model = from_pretrained(
            pretrained, model_class=self.AUTO_MODEL_CLASS, scheme=self.scheme, peft_adapter=peft, **self.patch, **given
        )

    @property
    def report(self) -> dict[str, Any]:
        """What was patched, or an empty dictionary."""
        from hf_posenc import describe

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
        for inputs in equal_lengths(same_input, batch_size):
            keep = max(len(requests[number][2]) for row in inputs for number in same_input[row])
            for row, logits in zip(inputs, self.logits(inputs, keep), strict=True):
                for number in same_input[row]:
                    request, _, target = requests[number]
                    answers[number] = self.answer(logits[-len(target) :], target)
                    self.cache_hook.add_partial("loglikelihood", request, answers[number])
                    self.ticked()
        return [answers[number] for number in range(len(requests))]

    def logits(self, inputs: Sequence[tuple[int, ...]], keep: int) -> torch.Tensor:
        """The last ``keep`` positions' logits of rows of one length: ``[row, keep, vocabulary]``."""
        with torch.inference_mode(), self.precision():
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
        """Refuse lm-eval's response cache where its path does not tell schemes apart: its key holds the request alone."""
        path = str(getattr(cache_hook.dbdict, "filename", ""))
        if self.scheme_name != "unscaled" and self.scheme_name not in path:
            raise StaleCache(f"The response cache {path!r} does not tell schemes apart. Put {self.scheme_name!r} into its path.")
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


@register_model("hf_posenc_mlm")
class PosEncMLM(PosEncLM):
    """A masked language model under a scheme: the target is hidden, and read off in one forward.

    lm-eval's own ``hf`` loads BERT as a decoder without a causal mask: it sees the tokens it is asked for.
    """

    AUTO_MODEL_CLASS = transformers.AutoModelForMaskedLM

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Scored]:
        """Log-probability of each target, all its tokens masked at once, and whether each token's mask reads it."""
        return [self.masked_answer(*request.args) for request in requests]

    def masked_answer(self, context: str, target: str) -> Scored:
        """One context and target, wrapped in the special tokens of the tokenizer."""
        joined = self.tok_encode(context + target, add_special_tokens=False)
        first = len(self.tok_encode(context, add_special_tokens=False)) if context else 0
        ids = [self.tokenizer.cls_token_id, *joined, self.tokenizer.sep_token_id]
        scores, greedy = self.scores(ids, list(range(1 + first, 1 + len(joined))))
        return sum(scores), all(greedy)

    def masked_tokens(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[list[float], list[bool]]]:
        """Log-probability of each masked token, and whether its mask reads it; requests are ``(name, ids, positions)``."""
        return [self.scores(ids, positions) for _, ids, positions in (request.args for request in requests)]

    def scores(self, ids: list[int], positions: list[int]) -> tuple[list[float], list[bool]]:
        """Mask ``positions`` of ``ids`` and score what was there."""
        self.check_length(len(ids), "masked")
        with torch.inference_mode(), self.precision():
            scores, greedy = masked_scores(self.model, ids, positions, self.tokenizer.mask_token_id, self.device)
        self.ticked()
        return scores.tolist(), greedy.tolist()

    def check_length(self, tokens: int, kind: str) -> None:
        """Refuse what does not fit; cutting a masked text would move its masks."""
        if tokens > self.max_length:
            raise RequestTooLong(
                f"A {kind} request of {tokens} tokens exceeds max_length {self.max_length}. "
                "Ask for a longer max_length or patch with a larger target_length."
            )

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """A masked model has no next-token loss."""
        raise NotMeasurable("A masked language model has no rolling log-likelihood. Use the task posenc_mlm.")

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """A masked model does not generate."""
        raise NotMeasurable("A masked language model does not generate. Use posenc_mlm or posenc_passkey.")


def equal_lengths(inputs: dict[tuple[int, ...], list[int]], size: int) -> Iterator[list[tuple[int, ...]]]:
    """Batches of at most ``size`` inputs of one length, longest first, so that memory runs out early or never."""
    by_length: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for row in inputs:
        by_length[len(row)].append(row)
    for length in sorted(by_length, reverse=True):
        rows = by_length[length]
        yield from (rows[i : i + size] for i in range(0, len(rows), size))


def scheme_options(scheme: str | None) -> set[str]:
    """Names of the options of a scheme or composition, as its record lists them."""
    from hf_posenc.registry import scheme_record

    return {name for part in (scheme or "").split("+") if part for name in scheme_record(part.strip()).options}


def refuse_unused(options: dict[str, Any]) -> None:
    """Refuse what `HFLM` would silently ignore beside a live model.

    Raises:
        UnknownOption: such an option was given.
    """
    known = set(inspect.signature(HFLM.__init__).parameters) - {"self", "kwargs", "peft", *OTHER_WEIGHTS}
    for name in options.keys() - known:
        raise UnknownOption(f"{name!r} has no effect on a model that is loaded already.{nearest(name, known)} Leave it out.")
