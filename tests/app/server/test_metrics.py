"""The metrics of several replicas in one text."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.server.metrics import merged

_TEXT = b"""# HELP moss_voice_sessions_total Sessions by how they ended.
# TYPE moss_voice_sessions_total counter
moss_voice_sessions_total{end="client"} 3.0
# HELP moss_voice_rtf_total Engine time.
# TYPE moss_voice_rtf_total histogram
moss_voice_rtf_total_bucket{le="+Inf"} 1.0
moss_voice_rtf_total_count 1.0
moss_voice_rtf_total_sum 0.5
"""


@pytest.mark.slow
def test_a_single_process_is_unchanged() -> None:
    assert merged({"": _TEXT}) == _TEXT


def test_each_sample_names_its_replica() -> None:
    text = merged({"a": _TEXT, "b": _TEXT.replace(b"3.0", b"5.0")}).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    sessions = families["moss_voice_sessions"]
    assert {(sample.labels["replica"], sample.value) for sample in sessions.samples} == {
        ("a", 3.0),
        ("b", 5.0),
    }
    assert sessions.type == "counter"
    assert families["moss_voice_rtf_total"].type == "histogram"
    assert text.count("# TYPE moss_voice_sessions_total") == 1, "a family is declared once"
