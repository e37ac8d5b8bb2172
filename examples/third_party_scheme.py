"""Write a scheme of your own in one file: Plateau, which works with every supported model and every check.

    score[h, i, j] = q_i · k_j / √d − m_h min(|i − j|, reach)          m_h = 2^(−8 (h + 1) / H)

ALiBi's penalty on distance, which stops growing at ``reach``: beyond it, only the content of the keys counts.

    python examples/third_party_scheme.py                       # patch a bundled model, measure every check; seconds
    python examples/third_party_scheme.py --model bert --factor 8 --reach 64

A scheme needs three things: a subclass of `Scheme` that overrides the hooks it uses (here a bias that depends only on
the distance; `hf_posenc.schemes.base` has all hooks), typed options with defaults, and the decorator. The package takes
care of models, caches and masks.

To make ``patch_model(model, "plateau")`` and ``hf-posenc list`` find the scheme without an import, name it in the
``pyproject.toml`` of your own package:

    [project.entry-points."hf_posenc.schemes"]
    plateau = "your_package.plateau:Plateau"

In your tests, one line runs every check on every model (see `hf_posenc.checks`).
"""

from __future__ import annotations

import argparse

from torch import Tensor

import hf_posenc
from hf_posenc.extend import Geometry, PositionContext, PositiveInt, Scheme, ToeplitzBias, register_scheme


@register_scheme("plateau", aliases=("capped_alibi",))
class Plateau(Scheme):
    """Linear penalty on distance up to ``reach`` tokens (default: the trained length), constant beyond."""

    def __init__(self, geometry: Geometry, *, reach: PositiveInt | None = None) -> None:
        super().__init__(geometry)
        self.reach = geometry.trained_length if reach is None else reach
        self.slopes = tuple(2 ** (-8 * (head + 1) / geometry.heads) for head in range(geometry.heads))

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        """Bias ``[heads, …]`` of distances ``[…]``; it is computed once per distance, not once per pair of tokens."""
        slopes = ctx.constant(self.slopes)

        def of_distance(distance: Tensor) -> Tensor:
            return -slopes.view(-1, *(1,) * distance.ndim) * distance.abs().clamp(max=self.reach)

        return ToeplitzBias(of_distance)


def main() -> None:
    """Patch a bundled model, describe the patch, and run every check that applies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="llama", choices=("llama", "gpt2", "bert"), help="a starter (default: llama)"
    )
    parser.add_argument("--factor", type=float, default=4.0, help="target length / trained length (default: 4)")
    parser.add_argument("--reach", type=int, help="tokens up to which the penalty grows (default: the trained length)")
    arguments = parser.parse_args()
    options = {} if arguments.reach is None else {"reach": arguments.reach}

    model, _ = hf_posenc.load_starter(arguments.model)
    hf_posenc.patch_model(model, "plateau", factor=arguments.factor, **options)
    print(hf_posenc.describe(model))
    hf_posenc.unpatch_model(model)

    deviations = hf_posenc.check_scheme(model, "plateau", factor=arguments.factor, **options)
    for deviation in deviations:
        print(
            f"  {deviation.check:<24}{deviation.value:.1e}, tolerance {deviation.tolerance:.0e}, at {deviation.where}"
        )
    failed = [str(deviation) for deviation in deviations if deviation.failed]  # each names a command that repeats it
    if failed:
        raise SystemExit("\n".join(failed))
    print(f"All {len(deviations)} checks hold.")


if __name__ == "__main__":
    main()
