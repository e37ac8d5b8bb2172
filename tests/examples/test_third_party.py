"""A scheme and an adapter of third parties: the examples run, pass checks, and are found through entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hf_posenc import checks
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.core.context import PositionContext
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import scheme_of

from ..example_modules import EXAMPLES, example_module

pytestmark = pytest.mark.slow


@pytest.fixture
def example() -> Iterator[ModuleType]:
    """The example as an imported module; its scheme is removed after the test."""
    with example_module("third_party_scheme") as module:
        yield module


def installed(site: Path, group: str, entry: str) -> dict[str, str]:
    """Environment variables with an installed distribution that has an example as its entry point."""
    info = site / "foreign-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hf_posenc.{group}]\n{entry}\n")
    path = os.pathsep.join([str(site), str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def run(*words: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "cannot be loaded" not in done.stderr  # the plugin is not imported while it is being imported
    return done.stdout


@pytest.mark.parametrize("model", ["llama", "bert"])
def test_every_check_on_every_model(example: ModuleType, model: str) -> None:
    case = checks.longest_case(model, "plateau")
    for check in checks.applicable_checks(case):
        checks.assert_passes(check.name, case)


def test_the_bias_of_the_example(example: ModuleType) -> None:
    """Linear up to the reach, constant beyond; equal to ALiBi for texts shorter than the reach."""
    scheme = scheme_of(patch_model(tiny_model("bert"), "capped_alibi", reach=5))
    positions = torch.arange(9)[None]
    bias = scheme.bias(PositionContext(positions, positions, causal=False, contiguous=True)).of_distance(positions[0])
    assert bias[0].tolist() == pytest.approx([-0.25 * min(d, 5) for d in range(9)])
    tokens = random_tokens(tiny_model("bert"), 2 * TRAINED_LENGTH)
    far = forward(patch_model(tiny_model("bert"), "plateau", reach=1000), tokens)
    assert torch.allclose(far, forward(patch_model(tiny_model("bert"), "alibi"), tokens), atol=1e-5)
    near = forward(patch_model(tiny_model("bert"), "plateau"), tokens)  # the trained length
    assert (near - far).abs().max() > 1e-2


def test_entry_point_of_a_scheme(tmp_path: Path) -> None:
    """Without an import of the module, `list` and `patch_model` find the scheme by name and alias."""
    code = """if True:
        import hf_posenc
        from hf_posenc.cli import main
        model, _ = hf_posenc.load_starter("llama")
        print(hf_posenc.describe(hf_posenc.patch_model(model, "capped_alibi", reach=8)).scheme)
        main(["info", "plateau"])
    """
    printed = run("-c", code, env=installed(tmp_path, "schemes", "plateau = third_party_scheme:Plateau"))
    assert printed.startswith("plateau\n")
    assert "stops growing" in printed


NEOX = """if True:
    import hf_posenc
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
    config = GPTNeoXConfig(
        hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64, vocab_size=96,
        max_position_embeddings=32, rotary_pct=0.5,
    )
    try:
        print(hf_posenc.describe(hf_posenc.patch_model(GPTNeoXForCausalLM(config).eval(), "yarn+logn", factor=4)))
    except hf_posenc.PosEncError as error:
        print(error)
"""


def test_entry_point_of_an_adapter(tmp_path: Path) -> None:
    """Nobody imports the module: patching finds it; without it, the general adapter patches other classes."""
    entry = "gpt_neox = third_party_adapter:GPTNeoXAdapter"
    found, general = run("-c", NEOX, env=installed(tmp_path, "adapters", entry)), run("-c", NEOX)
    assert "IdentityGPTNeoXRotaryEmbedding" in general
    assert "IdentityGPTNeoXRotaryEmbedding" not in found


def test_a_plugin_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    env = installed(tmp_path, "adapters", "gpt_neox = torch.nn:Linear")
    done = subprocess.run([sys.executable, "-c", NEOX], capture_output=True, text=True, env=env, check=False)
    assert "plugin 'gpt_neox' of foreign cannot be loaded" in done.stdout, done.stderr
