"""Versions of other packages that this package is tested with, and a warning for newer versions.

The bounds are read from the metadata of this package, which come from ``pyproject.toml``.
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
    """Versions of a package that our metadata require; any version if they do not name the package."""
    try:
        requirements = [Requirement(line) for line in requires("hf-posenc") or ()]
    except PackageNotFoundError:  # run from a checkout that is not installed
        requirements = []
    return next((r.specifier for r in requirements if r.name.replace("_", "-") == package), SpecifierSet())


@lru_cache(maxsize=8)
def beyond_tested(package: str) -> bool:
    """Whether the installed version of a package is newer than the tested versions; warns once.

    Warns:
        UntestedVersion: the installed version is beyond the upper bound.
    """
    try:
        installed = Version(version(package))
    except PackageNotFoundError:
        return False
    ends = [Version(bound.version) for bound in tested_versions(package) if bound.operator in ("<", "<=")]
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
    """Error for an installed version of a package that lacks something, with the versions to install."""
    return HostChanged(
        f"{package} {version(package)} lacks {lacks}. "
        f"Install {package}{tested_versions(package)}; if one of these is installed, report this."
    )
