"""What positional encodings are about, as demonstrations that run: each measures, and concludes from what it measured.

    from hf_posenc.insight.lessons import explain, topics
    print(explain("dog").conclusion)

A topic is one file of `hf_posenc.insight.lessons.demonstrations`: a registered function that says
what it does, measures it, and concludes.
"""

from __future__ import annotations

from hf_posenc.insight.lessons.finding import Finding, Table
from hf_posenc.insight.lessons.registry import (
    Topic,
    explain,
    topic,
    topics,
)

__all__ = ["Finding", "Table", "Topic", "explain", "topic", "topics"]
