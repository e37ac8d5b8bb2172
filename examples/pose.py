"""PoSE: train at the trained length, use at eight times that.

    python examples/pose.py --output runs/pose                            # the bundled starter Llama, minutes on a CPU
    python examples/pose.py --seeds 0 1 2 --output runs/pose3                         # with mean and spread over seeds
    python examples/pose.py --model HuggingFaceTB/SmolLM2-135M --factor 4 --text book.txt --held-out other.txt \\
        --steps 500 --learning-rate 2e-4 --bf16 --output runs/smol-pose

Rows are no longer than the trained length, and so attention costs no more; positions between two halves of a row are
skipped at random, so that every distance up to the target length occurs (Zhu et al. 2023, arXiv:2309.10400). It
composes with a scaling: "yarn+pose", "pi+pose", "ntk+pose". What is measured and written, and how to resume, is as in
finetune_lora.py, which has to lie beside this file. """

from __future__ import annotations

from finetune_lora import parser, start


def main() -> None:
    """Fine-tune with rows of the trained length."""
    start(parser(__doc__, scheme="yarn+pose", batch=8, steps=60), rows=min)


if __name__ == "__main__":
    main()
