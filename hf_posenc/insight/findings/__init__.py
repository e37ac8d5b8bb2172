"""Published findings on positional encodings, each run again by one command, with a verdict from paired intervals.

    from hf_posenc import reproduce
    print(reproduce("zero_shot_order").verdict)

A finding is one file of `hf_posenc.insight.findings.published`: a value that says what is claimed and by whom, what is
run, and the pairs of variants whose order decides. `reproduce` measures raw cells and judges them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.insight.findings.catalogue import all_findings as all_findings
    from hf_posenc.insight.findings.cells import DocumentScore as DocumentScore
    from hf_posenc.insight.findings.cells import FindingCell as FindingCell
    from hf_posenc.insight.findings.claims import Able as Able
    from hf_posenc.insight.findings.claims import Metric as Metric
    from hf_posenc.insight.findings.claims import Order as Order
    from hf_posenc.insight.findings.claims import Same as Same
    from hf_posenc.insight.findings.finding import Budget as Budget
    from hf_posenc.insight.findings.finding import Finding as Finding
    from hf_posenc.insight.findings.finding import Job as Job
    from hf_posenc.insight.findings.reproduction import Reproduction as Reproduction
    from hf_posenc.insight.findings.reproduction import verdict_of as verdict_of
    from hf_posenc.insight.findings.run import reproduce as reproduce
    from hf_posenc.insight.findings.verdict import Judged as Judged
    from hf_posenc.insight.findings.verdict import judge as judge

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "hf_posenc.insight.findings.catalogue": ("all_findings",),
        "hf_posenc.insight.findings.cells": ("FindingCell", "DocumentScore"),
        "hf_posenc.insight.findings.claims": ("Able", "Metric", "Order", "Same"),
        "hf_posenc.insight.findings.finding": ("Budget", "Finding", "Job"),
        "hf_posenc.insight.findings.reproduction": ("Reproduction", "verdict_of"),
        "hf_posenc.insight.findings.run": ("reproduce",),
        "hf_posenc.insight.findings.verdict": ("Judged", "judge"),
    },
)
