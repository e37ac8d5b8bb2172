"""Check an installed wheel: run it with an interpreter that has the wheel, outside the checkout given as argument."""

import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import hf_posenc
from hf_posenc.starters.loading import NAMES, load_starter, starter_path

HOME = Path(hf_posenc.__file__).parent
PLACES = {"hf_posenc": HOME, "patches": HOME / "patches", "eval": HOME / "eval"}


def lacking(checkout: Path) -> Iterator[str]:
    """Files of the checkout that the installed package lacks, or has with other content."""
    for folder, place in PLACES.items():
        for file in (checkout / folder).rglob("*"):
            installed = place / file.relative_to(checkout / folder)
            if not file.is_file() or file.suffix == ".pyc":
                continue
            if not installed.is_file() or installed.read_bytes() != file.read_bytes():
                yield str(file.relative_to(checkout))


if not HOME.is_relative_to(sys.prefix):
    sys.exit(f"hf_posenc comes from {HOME}, not from this environment {sys.prefix}.")
if missing := list(lacking(Path(sys.argv[1]))):
    sys.exit(f"The wheel lacks {', '.join(missing)}. See [tool.setuptools] in pyproject.toml.")
if not entry_points(group="console_scripts", name="hf-posenc"):
    sys.exit("The wheel declares no command hf-posenc. See [project.scripts] in pyproject.toml.")

for name in NAMES:
    if starter_path(name).is_dir():
        model, _ = load_starter(name)
        print(hf_posenc.describe(hf_posenc.patch_model(model, "alibi", factor=2)))
