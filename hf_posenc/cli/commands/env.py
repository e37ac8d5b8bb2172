"""``hf-posenc env``: versions, devices and environment variables for a bug report."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson

PACKAGES = (
    "hf-posenc", "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "accelerate", "peft",
    "datasets", "lm_eval", "numpy", "matplotlib", "pydantic", "typer", "rich",
)  # fmt: skip
RELEVANT = re.compile(
    r"HF_|TRANSFORMERS_|TOKENIZERS_|CUDA_|TORCH(?!INDUCTOR_CACHE_DIR)|PYTORCH_|OMP_|MKL_|NO_COLOR|FORCE_COLOR|TQDM_"
)
SECRET = re.compile(r"TOKEN(?!IZERS)|SECRET|PASSWORD|CREDENTIAL|_KEY|AUTH")
LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def env(as_json: AsJson = False) -> None:
    """Show versions, devices and environment variables for a bug report.

    Secrets are hidden.
    """
    found = environment()
    if as_json:
        output.show_json(found)
        return
    for title, values in found.items():
        output.show_text(f"{title}\n" + "\n".join(f"  {name:<28}{value}" for name, value in values.items()))


# torch itself sets the folder of its compiled kernels, a path of the machine that affects no result.


def environment() -> dict[str, dict[str, str]]:
    """Collect versions, machine and environment variables, each as names and values."""
    return {"versions": versions(), "machine": machine(), "environment": variables(os.environ.items())}


def versions() -> dict[str, str]:
    """Collect the versions of Python and of the packages that affect results."""
    return {"python": platform.python_version()} | {name: installed(name) for name in PACKAGES}


def installed(name: str) -> str:
    """Return a package's version, or ``"not installed"``."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def machine() -> dict[str, str]:
    """Collect system, cores, threads and accelerators."""
    import torch

    found = {"system": platform.platform(), "cores": str(os.cpu_count()), "torch threads": str(torch.get_num_threads())}
    for number in range(torch.cuda.device_count()):
        found[f"cuda:{number}"] = torch.cuda.get_device_name(number)
    if torch.backends.mps.is_available():
        found["mps"] = "available"
    return found


def variables(items: object) -> dict[str, str]:
    """Select the environment variables that affect results, without tokens and passwords."""
    relevant = {name: value for name, value in sorted(items) if RELEVANT.match(name)}  # type: ignore[call-overload]
    return {name: "(set, hidden)" if SECRET.search(name) else LOGIN.sub("…", value) for name, value in relevant.items()}
