"""Evaluate a scaling refitted per length: patched separately for every length, with the factor that reaches it.

    factor = length / trained length        for each length

What a user reaches who knows the length of every text beforehand, and patches for it. One deployed model has one factor
and is worse at short lengths: `pi` with factor 8 is poor at 1×.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.patching.patch import patch_model, unpatch_model


class RefittedLM(PosEncLM):
    """Language model for lm-eval that scores each request with the scheme patched for the smallest sufficient length.

    Args:
        pretrained: a live unpatched model; unpatched again afterwards.
        fit: scheme name.
        lengths: sequence lengths in tokens.
        options_at: options of the scheme when it is patched for a length; by default its own defaults.
        **options: as in `PosEncLM`.
    """

    def __init__(
        self,
        pretrained: Any,
        *,
        fit: str,
        lengths: Sequence[int],
        options_at: Callable[[int], dict[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(pretrained, max_length=max(lengths), **options)
        self.fit, self.lengths, self.options_at = fit, sorted(lengths), options_at or (lambda length: {})

    @property
    def prefixes(self) -> bool:
        """False: a forward pass cannot be shared between lengths, which have different factors."""
        return False

    def setting(self, tokens: int) -> int:
        """Return the length that a text of ``tokens`` tokens is scored under."""
        return self.length_of(tokens)

    @contextmanager
    def under(self, setting: Any) -> Iterator[None]:
        """Inside the block, patch the model for a length."""
        patch_model(self.model, self.fit, target_length=setting, **self.options_at(setting))
        try:
            yield
        finally:
            unpatch_model(self.model)

    def length_of(self, tokens: int) -> int:
        """Return the smallest of the lengths that holds a request.

        Raises:
            LengthTooShort: none does.
        """
        for length in self.lengths:
            if tokens <= length:
                return length
        raise LengthTooShort(f"A request of {tokens} tokens exceeds the lengths {self.lengths}. Add a longer one.")

    @property
    def scheme_name(self) -> str:
        """Name of the scheme in tables."""
        return self.fit

    def get_model_info(self) -> dict[str, Any]:
        """Describe the model for lm-eval's results, with the scheme, which is not patched in between requests."""
        return super().get_model_info() | {
            "posenc_scheme": self.fit, "posenc_options": {n: self.options_at(n) for n in self.lengths},
            "posenc_refitted_to": self.lengths,
        }  # fmt: skip
