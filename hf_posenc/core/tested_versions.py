"""Which versions of other packages this one is tested with, read from its own metadata, and a warning beyond them.

The bounds stand in ``pyproject.toml`` alone.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from hf_posenc.errors import HostChanged, UntestedVersion


@lru_cache(maxsize=8)
def tested_versions(package: str) -> SpecifierSet:
    """The versions of a package that the metadata of this one asks for; any where it says nothing."""
    try:
        stated = [Requirement(one) for one in requires("hf-posenc") or ()]
    except PackageNotFoundError:  # run from a checkout that is not installed
        stated = []
    return next((one.specifier for one in stated if one.name.replace("_", "-") == package), SpecifierSet())


@lru_cache(maxsize=8)
def beyond_tested(package: str) -> bool:
    """Whether the installed version of a package is newer than those this one is tested with; a warning says so once.

    Warns:
        UntestedVersion: the installed version is beyond the upper bound.
    """
    try:
        installed = Version(version(package))
    except PackageNotFoundError:
        return False
    ends = [Version(one.version) for one in tested_versions(package) if one.operator in ("<", "<=")]
    if all(Version(installed.base_version) < end for end in ends):
        return False
    warnings.warn(
        f"hf-posenc is tested with {package}{tested_versions(package)}, and {package} {installed} is installed. "
        "Install a tested version, or check your model with `hf-posenc check`.",
        UntestedVersion,
        stacklevel=2,
    )
    return True


def host_changed(package: str, lacks: str) -> HostChanged:
    """The error that says what the installed version of a package lacks, and which versions to install."""
    return HostChanged(
        f"{package} {version(package)} lacks {lacks}. "
        f"Install {package}{tested_versions(package)}; if one of these is installed, report this."
    )
