"""Search LongRoPE's factors for a model on your own text, and measure them on other text.

    python examples/search_longrope.py                                    # the bundled starter Llama, a minute on a CPU
    python examples/search_longrope.py --model HuggingFaceTB/SmolLM2-135M --factor 4 --text book.txt --budget 120 \\
        --held-out other.txt --output runs/smol-long

To use the result:

    hf_posenc.patch_model(model, "longrope", factor=4, long_factor=[…])      # or from_pretrained of --output

CMA-ES searches one factor per pair of channels, starting from the best of three known lists of factors (the seed):

    minimise over x:  loss of the text's end under long_m(x)
    ln long_m(x) = max over k ≤ m of max(0, ln seed_k + c_k(x))          c: piecewise linear in the pair, knots x

As in the paper's search, factors are at least 1 and never decrease with the pair. The point x = 0 is the seed itself:
position interpolation, NTK or NTK by parts, whichever fits the text best. The paper evolves lists by mutation and
crossover; CMA-ES (Hansen 2016, arXiv:1604.00772; pycma) gets as far in tens of evaluations. It needs pycma:
pip install cma

Ding et al. 2024, "LongRoPE", arXiv:2402.13753, section 3.2.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cma
import numpy as np
import torch
from common import load_model, progress_bar, run_command
from torch import Tensor, nn

import hf_posenc
from hf_posenc.core.geometry import Geometry
from hf_posenc.eval.texts.measured_text import HELD_OUT, module_text
from hf_posenc.patching.state import scheme_of
from hf_posenc.schemes.rotary.ntk import NTK
from hf_posenc.schemes.rotary.rotary import Rotary
from hf_posenc.schemes.rotary.yarn import NTKByParts
from hf_posenc.texts import TextSource

SEARCHED, MEASURED = HELD_OUT[:3], HELD_OUT[3:]  # modules that the starter was not trained on
RIVALS = ("pi", "ntk", "yarn")
KNOTS, SPREAD = 8, 0.2  # dimension of x, and the standard deviation of the first draws

Factors = tuple[float, ...]
Measure = Callable[[Factors], float]


def main() -> None:
    """Parse the command line and run."""
    run_command(run, parse())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama", help="a starter's name, a folder or a Hub name (default: llama)")
    parser.add_argument("--factor", type=float, default=4.0, help="target length / trained length (default: 4)")
    parser.add_argument("--budget", type=int, default=40, help="evaluations of the loss (default: 40)")
    parser.add_argument("--rows", type=int, default=3, help="windows of the target length (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search (default: 0)")
    parser.add_argument(
        "--text", nargs="+", help="texts to search on: files, folders or hub:NAME (default: standard library)"
    )
    parser.add_argument("--held-out", nargs="+", help="texts to measure on (default: other modules)")
    parser.add_argument("--output", type=Path, help="folder for the patched model")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    """Search the factors, then compare them with schemes that need no search."""
    model, tokenizer = load_model(arguments.model)
    geometry = scheme_of(hf_posenc.patch_model(model, "longrope", factor=arguments.factor)).geometry
    hf_posenc.unpatch_model(model)
    searched, measured = (
        cut(tokenizer, read(names, modules), arguments.rows, geometry.target_length)
        for names, modules in ((arguments.text, SEARCHED), (arguments.held_out, MEASURED))
    )
    with progress_bar() as progress:
        task = progress.add_task("searching", total=arguments.budget, loss="")

        def measure(long_factor: Factors) -> float:
            loss = loss_under(model, searched, arguments.factor, "longrope", long_factor=list(long_factor))
            progress.update(task, advance=1, loss=f"last {loss:.3f}")
            return loss

        losses = search(geometry, measure, arguments.budget, arguments.seed)
    best = min(losses, key=losses.__getitem__)
    print(f"best of {arguments.budget} evaluations: {losses[best]:.3f} nats/token")
    print("long_factor:", [round(factor, 4) for factor in best])
    print(f"\non other text, beyond {geometry.trained_length} of {geometry.target_length} tokens:")
    for scheme in RIVALS:
        print(f"  {scheme:9}{loss_under(model, measured, arguments.factor, scheme):.3f}")
    print(f"  {'longrope':9}{loss_under(model, measured, arguments.factor, 'longrope', long_factor=list(best)):.3f}")
    if arguments.output is not None:
        hf_posenc.patch_model(model, "longrope", factor=arguments.factor, long_factor=list(best))
        model.save_pretrained(arguments.output)
        tokenizer.save_pretrained(arguments.output)
        print(f"model: {arguments.output}")


def search(geometry: Geometry, measure: Measure, budget: int, seed: int = 0) -> dict[Factors, float]:
    """Try ``budget`` lists of factors, three seeds first, and return the loss of each."""
    tried = {start: measure(start) for start in seeds(geometry)}
    best_seed, left = min(tried, key=tried.__getitem__), budget - len(tried)
    knots = min(KNOTS, len(best_seed))
    draws = np.random.RandomState(seed)  # keeps numpy's global state unchanged
    options = {"seed": math.nan, "randn": draws.randn, "verbose": -9}
    strategy = cma.CMAEvolutionStrategy(np.zeros(max(knots, 2)), SPREAD, options)
    while left > 0 and not strategy.stop():
        points = strategy.ask()
        factors = [corrected(best_seed, x[:knots]) for x in points[:left]]
        losses = [measure(long_factor) for long_factor in factors]
        tried |= dict(zip(factors, losses, strict=True))
        left -= len(losses)
        if len(losses) == len(points):
            strategy.tell(points, losses)
    return tried


def seeds(geometry: Geometry) -> list[Factors]:
    """The factors by which position interpolation, NTK and NTK by parts divide the frequencies."""
    uniform = (geometry.factor,) * (geometry.rotary_dim // 2)
    return [uniform, *(stretch_of(kind(geometry)) for kind in (NTK, NTKByParts))]


def stretch_of(scaled: Rotary) -> Factors:
    """The factors by which a scaling divides the frequencies."""
    unscaled = Rotary(scaled.geometry, base=scaled.base).frequencies()
    return tuple(max(w / v, 1.0) for w, v in zip(unscaled, scaled.frequencies(), strict=True))


def corrected(start: Factors, knots: Any) -> Factors:
    """``start`` with logarithms shifted by the piecewise linear curve through ``knots``; ≥ 1 and never decreasing."""
    pairs = np.arange(len(start))
    moved = np.log(start) + np.interp(pairs, np.linspace(0, len(start) - 1, len(knots)), knots)
    return tuple(np.exp(np.maximum.accumulate(np.maximum(moved, 0.0))).tolist())


def read(names: list[str] | None, modules: tuple[str, ...]) -> str:
    """Read files, folders and datasets, or modules of the standard library, as one text."""
    if names is None:
        return "\n".join(map(module_text, modules))
    return "\n".join(document.content for document in TextSource.of_names(names).documents())


def cut(tokenizer: Any, text: str, rows: int, length: int) -> Tensor:
    """``rows`` windows of ``length`` tokens, spread over the text."""
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    if len(tokens) < length:
        raise SystemExit(
            f"A text has {len(tokens)} tokens, less than {length}. Give more of it, or a smaller --factor."
        )
    starts = torch.linspace(0, len(tokens) - length, rows).long().tolist()
    return torch.stack([tokens[start : start + length] for start in starts])


@torch.no_grad()
def loss_under(model: Any, rows: Tensor, factor: float, scheme: str, **options: Any) -> float:
    """Cross-entropy loss in nats/token beyond the trained length; the model is unpatched again afterwards."""
    hf_posenc.patch_model(model, scheme, factor=factor, **options)
    scored = rows.shape[1] - hf_posenc.describe(model).trained_length - 1
    losses = []
    try:
        for row in rows.to(next(model.parameters()).device):
            logits = model(row[None], logits_to_keep=scored + 1, use_cache=False).logits[0, :-1].float()
            losses.append(nn.functional.cross_entropy(logits, row[-scored:]).item())
    finally:
        hf_posenc.unpatch_model(model)
    return sum(losses) / len(losses)


if __name__ == "__main__":
    main()
