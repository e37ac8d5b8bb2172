"""lm-eval's model type ``hf_posenc``: a Hugging Face model with a positional scheme; requests are never truncated.

    base model → scheme → PEFT adapter              in this order, the adapter sees the positions it was trained with

Scores follow lm-eval's own ``hf``; without a scheme the numbers are the same. It differs where long contexts need it.
A request that is too long raises an error. Only scored positions go through the head, and the softmax is float32. A
scheme that depends on the length never gets a padded batch. Several processes share the work on CPU too.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
import transformers
from lm_eval.models.utils import resolve_max_length

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.checkpoints.load import from_pretrained, option_names
from hf_posenc.core import plugins
from hf_posenc.core.files.hf_errors import explained_errors
from hf_posenc.core.progress import OpenProgressCallback
from hf_posenc.errors import NotPatched, UnsupportedModel
from hf_posenc.eval.errors import NotMeasurable, TaskOptionOutOfRange
from hf_posenc.eval.lm import launch
from hf_posenc.eval.lm.log_probs import unwrapped
from hf_posenc.eval.lm.measurable import (
    OTHER_WEIGHTS,
    check_head,
    check_one_stack,
    disable_tying,
    model_arguments,
    refuse_unused,
    without_tying,
)
from hf_posenc.eval.lm.scorer import Scorer
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import describe

ON_OVERFLOW = ("error", "truncate")
LONG_TEXT = "sequence-length-is-longer-than-the-specified-maximum"  # transformers' key of a warning it issues once
LENGTHS = ("factor", "target_length", "trained_length", "layers")


class PosEncLM(Scorer):
    """A causal language model with a positional scheme, for lm-eval.

    Args:
        pretrained: name of a model, of a PEFT adapter, or of a bundled model (``starter:llama``); or a loaded model,
            patched or not.
        scheme: scheme to patch in; it stays on the model. None patches nothing.
        factor, target_length, trained_length, layers: as in `hf_posenc.patch_model`.
        max_length: longest request in tokens; by default the patched model's target, else the model's own length.
        on_overflow: ``"error"`` raises `RequestTooLong`; ``"truncate"`` cuts from the left as ``hf`` does.
        on_request: called after each scored request with the finished share of requests of its kind and a description;
            it replaces lm-eval's progress bar.
        import_file: Python file that registers the scheme or an adapter, imported first, as ``--import`` of hf-posenc.
        share: whether the processes of a launch share the documents. By default they do if the model is loaded by name:
            a loaded model may exist in only one process of a training run.
        **options: options of the scheme, and everything `HFLM` takes.
    """

    def __init__(
        self,
        pretrained: str | transformers.PreTrainedModel,
        scheme: str | None = None,
        on_overflow: str = "error",
        on_request: OpenProgressCallback | None = None,
        share: bool | None = None,
        import_file: str | None = None,
        **options: Any,
    ) -> None:
        if import_file is not None:
            plugins.import_file(import_file)
        if on_overflow not in ON_OVERFLOW:
            raise TaskOptionOutOfRange(
                f"on_overflow must be one of {ON_OVERFLOW}, got {on_overflow!r}. Choose one of them."
            )
        if options.get("truncation"):
            raise TaskOptionOutOfRange(
                "truncation=True lets the tokenizer cut the end of a prompt, where the question is. "
                "Pass on_overflow=truncate, which cuts the beginning."
            )
        self.scheme = scheme
        self.patch = {name: options.pop(name) for name in (*LENGTHS, *option_names(scheme)) if name in options}
        self.on_overflow, self.on_request = on_overflow, on_request
        share = isinstance(pretrained, str) if share is None else share
        if isinstance(pretrained, str):
            options = model_arguments(pretrained, options)
            pretrained = options.pop("pretrained")
        else:
            check_one_stack(getattr(unwrapped(pretrained), "config", None))
            refuse_unused(pretrained, options if scheme else self.patch | options)
            if scheme is not None:
                patch_model(pretrained, scheme, **self.patch)
        options.setdefault("device", "cuda" if torch.cuda.is_available() else "cpu")  # `HFLM` takes CUDA for granted
        together = launch.accelerator() if share else None
        with without_tying(self, pretrained):
            super().__init__(pretrained, **options)
        self.tokenizer.deprecation_warnings[LONG_TEXT] = True  # long texts are cut into windows after this
        if together is not None:  # lm-eval distributes the documents by rank
            self.accelerator = together
            self._rank, self._world_size = together.process_index, together.num_processes

    def _get_config(self, pretrained: str, **loading: Any) -> None:
        """Read the configuration without the guard that keeps transformers from loading a patched checkpoint."""
        self._config = Checkpoint.open(pretrained, **loading).hf_config()
        check_one_stack(self._config)

    def _create_tokenizer(self, pretrained: Any, tokenizer: Any, **loading: Any) -> None:
        """Load the tokenizer; the error for a missing or damaged one names its folder."""
        name = tokenizer or pretrained
        folder = name if isinstance(name, str) else getattr(name, "name_or_path", "")
        with explained_errors(folder, part="tokenizer of"):
            super()._create_tokenizer(pretrained, tokenizer, **loading)

    def _create_model(self, pretrained: str, *, peft: str | None = None, **loading: Any) -> None:
        """Load with `hf_posenc.from_pretrained`, which applies scheme and PEFT adapter in the right order."""
        for name in OTHER_WEIGHTS:
            if loading.pop(name, None):
                raise NotMeasurable(
                    f"{name} is not supported under a scheme. Load the model yourself and pass the object."
                )
        names = ("parallelize", "gpus", "max_memory_per_gpu", "max_cpu_memory", "offload_folder")
        placement = {name: loading.pop(name) for name in names if name in loading}
        loading |= self._get_accelerate_args(device_map=loading.pop("device_map", None), **placement)
        loading = {name: value for name, value in loading.items() if value not in (None, "", False)}
        loaded: Any = from_pretrained(
            pretrained, model_class=self.AUTO_MODEL_CLASS, scheme=self.scheme, peft_adapter=peft,
            output_loading_info=True, **self.patch, **loading,
        )  # fmt: skip
        self._model, report = loaded
        check_head(report, pretrained)
        disable_tying(self._model)

    @property
    def report(self) -> dict[str, Any]:
        """Description of the patched model; empty for an unpatched one."""
        try:
            return describe(self.model).to_dict()
        except (NotPatched, UnsupportedModel):  # without a scheme, any model may be measured
            return {}

    @property
    def own_length(self) -> int:
        """Context length from the configuration of model and tokenizer; beyond it, an unpatched model extrapolates."""
        return self.report.get("trained_length") or resolve_max_length(
            self.model.config, self.tokenizer, default=self._DEFAULT_MAX_LENGTH
        )

    @property
    def max_length(self) -> int:
        """The longest request: as given, else the patched model's target, else the model's own length."""
        return self._max_length or self.report.get("target_length") or self.own_length

    @max_length.setter
    def max_length(self, value: int) -> None:
        self._max_length = value

    @property
    def prefix_token_id(self) -> int:
        """Id of the token that precedes a text without context."""
        token_id = super().prefix_token_id
        if token_id is None:
            raise NotMeasurable(
                "This tokenizer has neither a begin nor an end token. Pass prefix_token_id=, the token before a text."
            )
        return token_id

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Refuse a response cache: its key is the text of a request alone, so it would answer for another scheme."""
        if cache_hook.dbdict is not None:
            raise NotMeasurable(
                "lm-eval's response cache (--use_cache) does not record the scheme of an answer. Leave it out; "
                "hf-posenc compare keeps what it has measured."
            )
        super().set_cache_hook(cache_hook)

    def get_model_info(self) -> dict[str, Any]:
        """Scheme, lengths, versions and size, to reproduce the numbers."""
        model = unwrapped(self.model)
        return {
            **{f"posenc_{name}": value for name, value in self.report.items()},
            "max_length": self.max_length,
            "own_length": self.own_length,
            "beyond_own_length": not self.report and self.max_length > self.own_length,
            "model_num_parameters": model.num_parameters(),
            "model_dtype": str(model.dtype),
            "model_revision": self.revision,
            "peft": self.peft,
            "versions": {name: version(name) for name in ("hf-posenc", "torch", "transformers", "lm_eval")},
        }
