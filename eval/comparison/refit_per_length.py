"""A static scaling at its best: patched anew for every length, with the factor that just reaches it.

    factor = length / trained length        for each length asked for

`pi` at factor 8 is poor at 1× and `pi` at factor 2 at 8×; a fair comparison over lengths gives each length its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.patching.patch import patch_model, unpatch_model


class RefittedLM(PosEncLM):
    """Scores each request under the scheme patched for the smallest of ``lengths`` that holds it.

    Args:
        pretrained: a live model that carries no scheme; it carries none afterwards.
        fit: scheme name.
        lengths: the lengths asked for.
        fit_options: options of the scheme.
        **options: as in `PosEncLM`.
    """

    def __init__(
        self,
        pretrained: Any,
        *,
        fit: str,
        lengths: Sequence[int],
        fit_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(pretrained, max_length=max(lengths), **options)
        self.fit, self.lengths, self.fit_options = fit, sorted(lengths), fit_options or {}

    @property
    def prefixes(self) -> bool:
        """No pass answers for another length, which has a factor of its own."""
        return False

    def setting(self, tokens: int) -> int:
        """The length that a text of so many tokens is scored under."""
        return self.length_of(tokens)

    @contextmanager
    def under(self, setting: Any) -> Iterator[None]:
        """Patched for a length, and back."""
        patch_model(self.model, self.fit, target_length=setting, **self.fit_options)
        try:
            yield
        finally:
            unpatch_model(self.model)

    def length_of(self, tokens: int) -> int:
        """The smallest of the lengths that holds a request.

        Raises:
            LengthTooShort: none does.
        """
        for length in self.lengths:
            if tokens <= length:
                return length
        raise LengthTooShort(f"A request of {tokens} tokens exceeds the lengths {self.lengths}. Add a longer one.")

    @property
    def scheme_name(self) -> str:
        """What tables call it."""
        return self.fit

    def get_model_info(self) -> dict[str, Any]:
        """As ever, with the scheme, which is off the model between requests."""
        return super().get_model_info() | {
            "posenc_scheme": self.fit, "posenc_options": self.fit_options, "posenc_refitted_to": self.lengths
        }  # fmt: skip
