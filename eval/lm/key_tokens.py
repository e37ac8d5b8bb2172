"""Scores of key tokens: those whose probability a long context raises, chosen by the unpatched model.

    long    … … … … … … … … context ▏ scored      as many tokens as the model was trained on
    short               … context ▏ scored        the last few of them
    key     log p(long) − log p(short) > gain,  and  log p(long) > likelihood

The evaluator is the model itself without its scheme, at its own trained length, or another model of the same
vocabulary that is named. So the choice is the same for every scheme and length.

Fang et al. 2024, "What is Wrong with Perplexity for Long-context Language Modeling?", arXiv:2410.23771, section 3.
"""

from __future__ import annotations

from typing import Any

from lm_eval.api.instance import Instance
from torch import Tensor

from hf_posenc.eval.errors import LengthTooShort, NotMeasurable
from hf_posenc.eval.lm.batching import Row
from hf_posenc.eval.lm.measurable import trained_length_of_lm
from hf_posenc.eval.lm.scorer import Scorer
from hf_posenc.eval.lm.spans import Pass
from hf_posenc.patching.patch import scheme_set_aside

KeyScore = tuple[float, int]


class KeyTokenScorer(Scorer):
    """Answers to requests for the scores of key tokens."""

    chooser: tuple[str, Any] | None = None  # name and model object of an evaluator, which goes when this object does

    def key_token_scores(self, requests: list[Instance], disable_tqdm: bool = False) -> list[KeyScore]:
        """Summed log-probability of the key tokens among the last of a text, and their number.

        Requests are ``(name, front, ids, length, scored, short, gain, likelihood, evaluator)``, the last the same in
        all: the last ``scored`` tokens of ``ids`` are looked at, after ``length`` tokens of context, themselves and
        ``front`` included. Tokens are chosen with the whole of ``ids`` at hand, up to the trained length.
        """
        unique = {id(request): request.args for request in requests}  # lm-eval repeats some to even out its processes
        asked = {key: [Pass(ending(args[1], args[2], args[3]), args[4], ())] for key, args in unique.items()}
        for (one,) in asked.values():
            self.check_length(len(one.tokens) - 1, "key_token_scores")
        evaluator = next((args[-1] for args in unique.values()), "")
        chosen = self.evaluator(evaluator).key_tokens(list(unique.values()))
        answers: dict[int, KeyScore] = {}
        for key, _, scores, _ in self.answered(asked, disable_tqdm):
            mask = chosen[choice(unique[key])]
            answers[key] = float(scores.double().cpu()[mask].sum()), int(mask.sum())
        return [answers[id(request)] for request in requests]

    def evaluator(self, name: str) -> Any:
        """The model object that chooses key tokens, loaded once; this one without a name."""
        if not name:
            return self
        if self.chooser is None or self.chooser[0] != name:
            self.chooser = None  # frees the earlier one first
            kind: Any = type(self)
            found = kind(name, device=str(self.device), share=False)
            if found.tokenizer.get_vocab() != self.tokenizer.get_vocab():
                raise NotMeasurable(
                    f"The evaluator {name} has another vocabulary. Choose one with the tokenizer of the model."
                )
            self.chooser = name, found
        return self.chooser[1]

    def key_tokens(self, requests: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], Tensor]:
        """Which of the scored tokens are key tokens, for every choice that the requests ask for."""
        choices = {choice(args): args for args in requests}
        with scheme_set_aside(self.model):
            trained = trained_length_of_lm(self)
            wanted: dict[Row, int] = {}
            pairs: dict[tuple[Any, ...], tuple[Row, Row]] = {}
            for key, (_, front, ids, _, scored, short, *_) in choices.items():
                if min(trained, len(front) + len(ids)) <= len(front) + short + scored:
                    raise LengthTooShort(
                        f"Key tokens compare a context of {trained} tokens, the trained length, with a shorter "
                        f"one: {short} before {scored} scored ones, which is as long. Score fewer, or lower short."
                    )
                pairs[key] = ending(front, ids, trained), ending(front, ids, len(front) + short + scored)
                wanted |= dict.fromkeys(pairs[key], scored)
            found = {text: scores.double().cpu() for text, scores, _ in self.scored(wanted)}
        return {
            key: (found[long] - found[short] > key[-2]) & (found[long] > key[-1])
            for key, (long, short) in pairs.items()
        }


def choice(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the choice of key tokens depends on: text, scored tokens and thresholds, not the measured length."""
    _, front, ids, _, scored, short, gain, likelihood, _ = args
    return (*front, *ids), scored, short, gain, likelihood


def ending(front: list[int], ids: list[int], length: int) -> Row:
    """The end of a text of ``length`` tokens, ``front`` included."""
    return (*front, *ids[-(length - len(front)) :])
