"""``hf-posenc list``, ``info`` and ``env``: all schemes, one of them, and this machine for a bug report."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from typer import Argument, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.citations import cite
from hf_posenc.schemes.registry import list_schemes, scheme_record

LEARNED = {
    True: "has parameters to train",
    False: "has no parameters",
    None: "has parameters or not, by its options",
}
USES = {
    "zero-shot": "works on a RoPE model without training",
    "training": "the model must be trained with it",
    "recipe": "a training recipe on top of another scheme",
}
CACHES = {
    "final": "keys as attention uses them",
    "copies": "one copy of the keys per region",
    "heads": "keys and values of every query head",
    "raw": "unrotated keys, rotated at every step",
}
FAMILIES = ("family", "kind", "can be patched", "schemes", "positions, or the reason")
VERDICTS = {"exact": "yes", "attention layers": "attention layers", "refused": "no", "not built": "not built"}
COLUMNS = ("name", "aliases", "defined for", "learned", "use", "cache", "paper")


def info(
    name: Annotated[str, Argument(help="Name or alias of a scheme, or a composition.")],
    bibtex: Annotated[bool, Option("--bibtex", help="Write only the BibTeX of its papers.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the formula, paper and options of a scheme or composition."""
    if bibtex and as_json:
        raise BadArgument("--bibtex writes BibTeX alone. Leave --json out.")
    if bibtex:
        output.show_text(cite(name))
        return
    records = [scheme_record(part) for part in name.split("+")]
    if as_json:
        output.show_json(asdict(records[0]) if len(records) == 1 else [asdict(record) for record in records])
        return
    for number, record in enumerate(records):
        if number:
            output.show_text("")
        show_record(record)


def show_record(record: SchemeRecord) -> None:
    """Show the text of a scheme, for one of another package its LaTeX formula, its facts and its options."""
    latex = "" if record.shipped else record.formula.replace("\n", "\n    ")
    formula = f"formula (LaTeX):\n\n    {latex}" if latex else ""
    about = dict.fromkeys((record.text, record.about, formula, facts(record)))  # both texts may be equal
    output.show_text("\n\n".join(filter(None, about)) + "\n")
    if record.options:
        rows = [(option, kind, default or "required") for option, (kind, default) in record.options.items()]
        output.show_table(("option", "value", "default"), rows)


def facts(record: SchemeRecord) -> str:
    """Format a record as lines of key and value."""
    lines = {
        "name": ", ".join((record.name, *record.aliases)),
        "defined for": record.defined_for,
        "trained": LEARNED[record.learned],
        "use": USES[record.use],
        "KV cache": CACHES.get(record.cache, record.cache),
        "paper": paper_address(record.paper),
    }
    return "\n".join(f"{key:<13}{value}" for key, value in lines.items() if value)


def paper_address(paper: str) -> str:
    """Turn an arXiv number into a URL; return a URL unchanged."""
    return paper if not paper or paper.startswith("http") else f"https://arxiv.org/abs/{paper}"


def list_command(
    model: Annotated[
        str | None,
        Option("--model", "-m", help="Only schemes for this family (llama, gpt2); --models also takes a checkpoint."),
    ] = None,
    models: Annotated[
        bool, Option("--models", help="Show whether the family or checkpoint of --model can be patched.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List all schemes, training recipes last.

    A recipe changes positions during training only.
    """
    if models:
        show_families(model, as_json)
        return
    records = list_schemes()
    if model is not None:
        from hf_posenc.insight.families import schemes_of  # loads transformers: seconds

        records = schemes_of(model)
    records.sort(key=lambda record: record.recipe)
    if as_json:
        output.show_json([asdict(record) for record in records])
    else:
        rows = [(r.name, r.aliases, r.defined_for, r.learned, r.use, r.cache, r.paper) for r in records]
        output.show_table(COLUMNS, rows)
        output.show_text(
            "\nThe KV cache holds " + "; ".join(f"{meaning} ({name})" for name, meaning in CACHES.items()) + "."
        )


def show_families(model: str | None, as_json: bool) -> None:
    """Show whether a family or a checkpoint can be patched, as measured on the installed transformers."""
    from hf_posenc.insight import families

    if model is None:
        raise BadArgument("--models looks at one family or checkpoint. Name it, as in --models --model qwen3.")
    found = families.one(model)
    if as_json:
        output.show_json([asdict(one) for one in found])
    else:
        output.show_table(FAMILIES, [(f.model_type, f.kind, VERDICTS[f.verdict], f.schemes, f.detail) for f in found])


PACKAGES = (
    "hf-posenc", "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "accelerate", "peft",
    "datasets", "lm_eval", "numpy", "matplotlib", "pydantic", "typer", "rich",
)  # fmt: skip
# torch itself sets the folder of its compiled kernels, a path of the machine that affects no result.
# The last three choose the allocator and when it returns memory, on which the peaks of `bench` depend.
RELEVANT = re.compile(
    r"HF_|TRANSFORMERS_|TOKENIZERS_|CUDA_|TORCH(?!INDUCTOR_CACHE_DIR)|PYTORCH_|OMP_|MKL_|NO_COLOR|FORCE_COLOR|TQDM_|"
    r"MALLOC_|GLIBC_TUNABLES|LD_PRELOAD"
)
SECRET = re.compile(r"TOKEN(?!IZERS)|SECRET|PASSWORD|CREDENTIAL|_KEY|AUTH")
LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def env(as_json: AsJson = False) -> None:
    """Show versions, devices and variables for a bug report.

    Variables are those of the environment that affect results. Secrets are hidden.
    """
    found = environment()
    if as_json:
        output.show_json(found)
        return
    for title, values in found.items():
        output.show_text(f"{title}\n" + "\n".join(f"  {name:<28}{value}" for name, value in values.items()))


def environment() -> dict[str, dict[str, str]]:
    """Collect versions, machine and environment variables by name."""
    versions = {"python": platform.python_version()} | {name: installed(name) for name in PACKAGES}
    return {"versions": versions, "machine": machine(), "environment": variables(os.environ)}


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


def variables(found: Mapping[str, str]) -> dict[str, str]:
    """Select the environment variables that affect results, without tokens and passwords."""
    relevant = {name: value for name, value in sorted(found.items()) if RELEVANT.match(name)}
    return {name: "(set, hidden)" if SECRET.search(name) else LOGIN.sub("…", value) for name, value in relevant.items()}
