"""Names, records and plugins."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from transformers.utils import logging

from hf_posenc.core import plugins
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import RECORDS, list_schemes, register_scheme, scheme_record


@pytest.mark.slow
def test_shipped_records_are_what_the_decorators_say() -> None:
    """Regenerated in a process of its own, where nothing but the built-in schemes was ever registered."""
    code = "import json; from hf_posenc.schemes import registry; print(json.dumps(registry.built_in_records()))"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(fresh) == json.loads(RECORDS.read_text(encoding="utf-8")), (
        "run python -m hf_posenc.schemes.registry"
    )


def test_aliases_answer_and_belong_to_one() -> None:
    names = [name for record in list_schemes() for name in (record.name, *record.aliases)]
    assert len(names) == len(set(names))
    for record in list_schemes():
        assert all(scheme_record(alias) == record for alias in record.aliases)


def test_listing_loads_no_torch() -> None:
    code = "import sys; from hf_posenc import list_schemes; assert list_schemes(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_taken_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'yarn' belongs to hf_posenc\.schemes\.rotary\.yarn:Yarn"):
        register_scheme("yarn")(type("Mine", (Scheme,), {"__module__": __name__}))
    with pytest.raises(ValueError, match="'linear_bias' belongs to"):
        register_scheme("mine", aliases=("linear_bias",))(type("Mine", (Scheme,), {"__module__": __name__}))


def test_broken_plugin_does_not_break_the_list(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.get_logger("hf_posenc.schemes.registry"), "propagate", True)
    monkeypatch.setattr(logging.get_logger("transformers"), "propagate", True)
    broken = EntryPoint("broken", "no_such_module_anywhere:Thing", "hf_posenc.schemes")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [broken])
    monkeypatch.setattr(plugins, "_LOADED", set())
    monkeypatch.setattr(plugins, "_FAILURES", {})
    assert {record.name for record in list_schemes()} >= {"none", "yarn", "alibi"}
    assert "'broken'" in plugins.plugin_failures("hf_posenc.schemes")
    assert "'broken'" in caplog.text
    assert "Update or remove it" in caplog.text
