"""lm-eval's model type ``hf_posenc_mlm``: a masked language model with a positional scheme.

    target tokens → [MASK] → one forward pass → log softmax at their positions

lm-eval's own ``hf`` loads BERT as a decoder without a causal mask, which sees the tokens that it has to predict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from lm_eval.api.instance import Instance

from hf_posenc.errors import RequestTooLong
from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.lm.log_probs import chosen_logits, token_scores
from hf_posenc.eval.lm.measurable import check_row
from hf_posenc.eval.lm.scorer import Scored


class PosEncMLM(PosEncLM):
    """A masked language model with a scheme; a target is masked and scored in one pass. Arguments: `PosEncLM`."""

    AUTO_MODEL_CLASS = transformers.AutoModelForMaskedLM

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Scored]:
        """Log-probability of each target with all its tokens masked at once, and whether each token is the argmax."""
        return self.each(requests, self.masked_answer)

    def each(self, requests: list[Instance], answer: Callable[..., Any]) -> list[Any]:
        """Answer each request once; lm-eval repeats some requests so that all processes have equally many."""
        unique = {id(request): request.args for request in requests}
        answers = {}
        with self.progress(len(unique), "Scoring", disable=True) as finished:
            for key, args in unique.items():
                answers[key] = answer(*args)
                finished()
        return [answers[id(request)] for request in requests]

    def masked_answer(self, context: str, target: str) -> Scored:
        """Score one target after its context, wrapped in the special tokens of the tokenizer."""
        joined = self.tok_encode(context + target, add_special_tokens=False)
        first = len(self.tok_encode(context, add_special_tokens=False)) if context else 0
        ids = [self.tokenizer.cls_token_id, *joined, self.tokenizer.sep_token_id]
        scores, greedy = self.scores(ids, list(range(1 + first, 1 + len(joined))))
        return sum(scores), all(greedy)

    def masked_tokens(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[list[float], list[bool]]]:
        """Log-probability of each masked token, and whether it is the argmax. Requests: ``(name, ids, positions)``."""
        return self.each(requests, lambda name, ids, positions: self.scores(ids, positions))

    @torch.no_grad()
    def scores(self, ids: list[int], positions: list[int]) -> tuple[list[float], list[bool]]:
        """Mask ``positions`` of ``ids`` and score the original tokens."""
        self.check_length(len(ids), "masked")
        check_row(self, ids)
        row, chosen = torch.tensor([ids], device=self.device), torch.tensor(positions, device=self.device)
        masked = row.clone()
        masked[0, chosen] = self.tokenizer.mask_token_id
        with self.precision(), self.seeded([tuple(ids)]):
            scores, greedy = token_scores(chosen_logits(self.model, masked, chosen)[0], row[0, chosen])
        return scores.tolist(), greedy.tolist()

    def check_length(self, tokens: int, kind: str) -> None:
        """Refuse a request that is too long: truncating a masked text would move its masks."""
        if tokens > self.max_length:
            raise RequestTooLong(
                f"A {kind} request of {tokens} tokens, the special ones at both ends included, exceeds max_length "
                f"{self.max_length}. Ask for shorter lengths (those of posenc_mlm count the special tokens), or patch "
                "with a larger target_length."
            )

    def refused(self, requests: list[Instance], disable_tqdm: bool = False) -> Any:
        """Raise `NotMeasurable`: a masked model sees both sides of a token."""
        raise NotMeasurable(
            "A masked language model has no next-token loss, and does not generate. Use posenc_mlm, posenc_mlm_recall "
            "or posenc_passkey."
        )

    loglikelihood_rolling = suffix_scores = generate_until = refused
