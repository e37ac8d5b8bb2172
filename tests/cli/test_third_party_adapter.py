"""A third-party adapter: the example, installed as a package of its own, is found by its entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_posenc import checks, list_schemes
from hf_posenc.errors import SchemeNotDefined

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_adapter.py"
CHECKS = ("cache", "formula", "unpatch", "isolation", "saving", "batch")
"""Of checks that differ in what they ask of an adapter: cache, positions, classes, configuration, mask."""
SCHEMES = ("rope", "yarn", "alibi", "t5", "sinusoidal", "rerope", "dynamic_ntk", "window", "cope", "xpos", "longrope")
"""Of each kind of hook one."""


@pytest.fixture(scope="module", params=["decorated", "bare"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which a distribution is installed whose entry point names the adapter, decorated or not."""
    site = tmp_path_factory.mktemp(request.param)
    info = site / "neox_posenc-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: neox-posenc\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hf_posenc.adapters]\ngpt_neox = neox_posenc:GPTNeoXAdapter\n")
    code = EXAMPLE.read_text(encoding="utf-8")
    bare = code.replace('@register_adapter("gpt_neox")\n', "")
    assert bare != code
    (site / "neox_posenc.py").write_text(code if request.param == "decorated" else bare, encoding="utf-8")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(code: str, env: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "cannot be loaded" not in done.stderr
    return done.stdout


MODEL = """if True:
    import sys
    import torch
    import hf_posenc
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
    config = GPTNeoXConfig(
        hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64, vocab_size=96,
        max_position_embeddings=32, rotary_pct=0.5,
    )
    torch.manual_seed(0)
    model = GPTNeoXForCausalLM(config).eval()
    tokens = torch.randint(0, 96, (1, 60))
"""


def test_the_first_call_and_a_checkpoint(installed: dict[str, str], tmp_path: Path) -> None:
    """Nobody imports the module: patching finds it, and so does a process that loads the saved model."""
    output = run(
        f"""{MODEL}
    print(hf_posenc.describe(hf_posenc.patch_model(model, "yarn+logn", factor=4)).model)
    model.save_pretrained({str(tmp_path)!r})
    torch.save(model(tokens).logits, {str(tmp_path / "logits.pt")!r})
    """,
        installed,
    )
    assert output == "GPTNeoXModel\n"
    output = run(
        f"""{MODEL}
    loaded = hf_posenc.from_pretrained({str(tmp_path)!r}, dtype=torch.float32).eval()
    before = torch.load({str(tmp_path / "logits.pt")!r})
    print(hf_posenc.describe(loaded).scheme, torch.equal(loaded(tokens).logits, before))
    """,
        installed,
    )
    assert output == "yarn+logn True\n"


def test_everything_selected_by_model_type_finds_it(installed: dict[str, str]) -> None:
    output = run(
        f"""{MODEL}
    from hf_posenc.cli import main
    from hf_posenc.patches.registry import adapter_names
    print("gpt_neox" in adapter_names())
    advice = hf_posenc.advise(model, 128)
    print(advice.supported, "yarn" in [one.scheme for one in (*advice.zero_shot, *advice.training)])
    main(["list", "--model", "gpt_neox"])
    """,
        installed,
    ).splitlines()
    assert output[:2] == ["True", "True True"]
    listed = {line.split()[0] for line in output[2:] if line.strip()}
    assert {"yarn", "rerope", "xpos"} <= listed
    assert not {"learned_hier", "learned_interp"} & listed


def test_without_it_the_general_adapter_is_used() -> None:
    """Control of the above: other classes stand in the report."""
    code = f"""{MODEL}
    hf_posenc.patch_model(model, "yarn", factor=2)
    print(hf_posenc.describe(model))
    """
    assert "SilentGPTNeoXRotaryEmbedding" in run(code, dict(os.environ))


def test_a_plugin_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hf_posenc.adapters]\ngpt_neox = torch.nn:Linear\n")
    code = f"""{MODEL}
    import hf_posenc.errors
    try:
        hf_posenc.patch_model(model, "yarn")
    except hf_posenc.errors.UnsupportedModel as error:
        print(error)
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert "plugin 'gpt_neox' of broken cannot be loaded (An adapter is a subclass of" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def neox() -> Iterator[Any]:
    """The example's model, imported here, and forgotten again."""
    sys.path.insert(0, str(EXAMPLE.parents[1] / "tests" / "patches" / "adapters"))
    try:
        import neox as helper  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    with helper.example_adapter():
        yield helper.tiny_neox()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_checks_of_each_kind(neox: Any, scheme: str) -> None:
    case = checks.longest_case(neox, scheme)
    for check in checks.applicable_checks(case, names=CHECKS):
        checks.assert_passes(check.name, case.with_copied_model() if check.needs_copy else case)


@pytest.mark.parametrize(
    ("scheme", "check"),
    [
        ("fox", "precision"),
        ("cable", "precision"),
        ("transformer_xl", "precision"),
        ("transformer_xl", "torch_compile"),
        ("wavelet", "torch_export"),
    ],
)
def test_a_live_float32_model_with_fused_projections(neox: Any, scheme: str, check: str) -> None:
    """Float32 where tiny models are measured in bfloat16, and queries with gaps in memory."""
    case = checks.longest_case(neox, scheme)
    checks.assert_passes(check, case.with_copied_model())


@pytest.mark.full
@pytest.mark.parametrize("scheme", [record.name for record in list_schemes()])
def test_every_check_of_every_scheme(neox: Any, scheme: str) -> None:
    try:
        case = checks.longest_case(neox, scheme)
    except SchemeNotDefined:
        assert scheme in ("learned_hier", "learned_interp")
        return
    for check in checks.applicable_checks(case):
        checks.assert_passes(check.name, case.with_copied_model() if check.needs_copy else case)
