"""lm-eval's model type ``hf_posenc_mlm``: a masked language model with a positional scheme.

    target tokens → [MASK] → one forward pass → log softmax at their positions

lm-eval's own ``hf`` loads BERT as a decoder without a causal mask, which sees the very tokens it has to predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from lm_eval.api.instance import Instance
from torch import Tensor, nn

from hf_posenc.errors import RequestTooLong
from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.lm.causal_lm import PosEncLM, Scored
from hf_posenc.eval.lm.log_probs import chosen_logits, token_scores
from hf_posenc.eval.lm.measurable import check_row


class PosEncMLM(PosEncLM):
    """A masked language model with a scheme; a target is masked and scored in one pass. Arguments: `PosEncLM`."""

    AUTO_MODEL_CLASS = transformers.AutoModelForMaskedLM

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Scored]:
        """Log-probability of each target with all its tokens masked at once, and whether each token is the argmax."""
        unique = {id(request): request for request in requests}  # lm-eval repeats some to even out its processes
        self.expect(len(unique), "Scoring")
        answers = {key: self.masked_answer(*request.args) for key, request in unique.items()}
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
        unique = {id(request): request for request in requests}
        self.expect(len(unique), "Scoring")
        answers = {key: self.scores(*request.args[1:]) for key, request in unique.items()}
        return [answers[id(request)] for request in requests]

    def scores(self, ids: list[int], positions: list[int]) -> tuple[list[float], list[bool]]:
        """Mask ``positions`` of ``ids`` and score the original tokens."""
        self.check_length(len(ids), "masked")
        check_row(self, ids)
        with torch.no_grad(), self.precision(), self.seeded([tuple(ids)]):
            scores, greedy = masked_scores(self.model, ids, positions, self.tokenizer.mask_token_id, self.device)
        self.ticked()
        return scores.tolist(), greedy.tolist()

    def check_length(self, tokens: int, kind: str) -> None:
        """Refuse a request that does not fit: truncating a masked text would move its masks."""
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

    loglikelihood_rolling = span_scores = key_token_scores = generate_until = refused


def masked_scores(
    model: nn.Module, ids: Sequence[int], positions: Sequence[int], mask_id: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Log-probability of the tokens at ``positions`` when all of them are masked, and whether each is the argmax."""
    row = torch.tensor([list(ids)], device=device)
    chosen = torch.tensor(list(positions), device=device)
    hidden = row.clone()
    hidden[0, chosen] = mask_id
    return token_scores(chosen_logits(model, hidden, chosen)[0], row[0, chosen])
