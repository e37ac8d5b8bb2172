"""LoRA for a longer context: alone, with norms and embeddings, and full fine-tuning."""

from __future__ import annotations

from laboratory.trained import tuned
from verdict import Finding, Metric, better, main

FACTOR = 4.0
ALONE, WITH, FULL = "LoRA alone", "LoRA, norms, embeddings", "full fine-tuning"
SCORES = {"loss": ("posenc_ppl", "nll")}
TRAINING = {"steps": 30, "batch": 2}
RANK = 8
SCHEME = {"scheme": "pi", "recipe": "full_length"}

FINDING = Finding(
    claim="LoRA alone does not bring a model to a longer context; with norms and embeddings trained as well it "
    "comes close to full fine-tuning.",
    source="Chen et al. 2023, LongLoRA, arXiv:2309.12307, section 3.3 and table 2",
    against="A loss at four times the trained length that is surely no lower with norms and embeddings than "
    "without, or that is surely more than 5 % of perplexity above that of full fine-tuning.",
    limits="The source tunes Llama 2 7B, where embeddings are 2 % of the weights; here they are 14 %, and LoRA of "
    "rank 8 beside every linear layer has a larger share as well. One run: the intervals are over documents.",
    variants={
        ALONE: {**SCHEME, "training": {"method": "full"}, "lora_alone": RANK},
        WITH: {**SCHEME, "training": {"method": "lora", "rank": RANK}},
        FULL: {**SCHEME, "training": {"method": "full"}},
    },
    points=(1.0, FACTOR),
    metrics=(Metric("loss"),),
    claims=(
        better(first=WITH, second=ALONE, at=FACTOR),
        better(first=WITH, second=FULL, at=FACTOR, margin=-0.05),
    ),
    full={"training": TRAINING, "scores": SCORES, "samples": 32},
    quick={"training": TRAINING | {"steps": 10}, "scores": SCORES, "samples": 8},
    measure=tuned,
)

if __name__ == "__main__":
    main(FINDING)
