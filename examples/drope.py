"""DroPE: drop the rotation from a trained model, recalibrate it at its trained length, and extrapolate beyond that.

    python examples/drope.py --output runs/drope                          # the bundled starter Llama, minutes on a CPU
    python examples/drope.py --seeds 0 1 2 --output runs/drope3                       # with mean and spread over seeds
    python examples/drope.py --model HuggingFaceTB/SmolLM2-135M --text book.txt --held-out other.txt --steps 50000 \\
        --learning-rate 3e-4 --bf16 --output runs/smol-drope

A decoder can infer order from its causal mask, and learns to do without rotation in a small share of its
pre-training, with all weights trained and no long text (Gelberg et al. 2025, arXiv:2512.12167: 0.5 to 2 percent).
"patched" in the table is the model after the drop and before recalibration: broken. Compare "trained" with
"unpatched", which is RoPE beyond its trained length. What is measured and written, and how to resume an interrupted
run, is as in finetune_lora.py, which has to lie beside this file; each seed's folder is a model of its own:

    hf_posenc.from_pretrained("runs/drope/seed-0")
"""

from __future__ import annotations

from finetune_lora import parser, start


def main() -> None:
    """Recalibrate all weights with rows of the trained length."""
    start(parser(__doc__, scheme="drope", factor=4.0, method="full", batch=8, steps=200), rows=min)


if __name__ == "__main__":
    main()
