"""What positional encodings are about, as demonstrations that run: each measures, and concludes from what it measured.

    from hf_posenc.explain import explain, topics
    print(explain("dog").conclusion)

A topic is one file of `hf_posenc.explain.demonstrations`: a registered function that says
what it does, measures it, and concludes.
"""

from __future__ import annotations

from hf_posenc.explain.book import Topic, explain, topic, topics
from hf_posenc.explain.finding import Finding, Table

__all__ = ["Finding", "Table", "Topic", "explain", "topic", "topics"]
