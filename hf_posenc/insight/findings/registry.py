"""Registry of findings by name; every module of `hf_posenc.insight.findings.published` registers one."""

from __future__ import annotations

from hf_posenc.insight.findings.finding import Finding

_FINDINGS: dict[str, Finding] = {}


def register_finding(finding: Finding) -> Finding:
    """Register a finding.

    Raises:
        ValueError: there is a finding of that name already.
    """
    if finding.name in _FINDINGS:
        raise ValueError(f"There is a finding {finding.name!r} already. Choose another name.")
    return _FINDINGS.setdefault(finding.name, finding)


def registered_findings() -> dict[str, Finding]:
    """The findings registered so far, by name."""
    return dict(_FINDINGS)
