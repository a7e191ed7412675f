"""The section `tracing`, and what of a trace travels with a request."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes

from actors.errors import ConfigError
from cluster import span_names
from cluster.config import Config, config_of
from cluster.tracing import TracingConfig, context_of, open_tracing, trace_id_in, traceparent_of
from tests.unit.recorded_spans import KEPT, TRACE_ID, RecordedSpans, parent_id, span_id


def test_it_is_off_by_default() -> None:
    assert Config().tracing == TracingConfig(endpoint=None, sample=0.01)
    assert open_tracing(TracingConfig(), "manager") is None


def test_the_section_is_read() -> None:
    section = {"endpoint": "https://collector:4318/otlp", "sample": 1}
    assert config_of({"tracing": section}).tracing == TracingConfig(**section)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"endpoint": "collector:4318"}, "tracing.endpoint: an http or https address is wanted"),
        ({"endpoint": "http://"}, "tracing.endpoint: an http or https address is wanted"),
        ({"endpoint": ""}, "tracing.endpoint: an http or https address is wanted"),
        ({"endpoint": "grpc://c:4317"}, "tracing.endpoint: an http or https address is wanted"),
        ({"endpoint": "http://c:4318/v1/traces"}, "tracing.endpoint: the collector's address"),
        ({"endpoint": "http://c:4318?a=b"}, "tracing.endpoint: the collector's address alone"),
        ({"endpoint": "http://[c:4318"}, "tracing.endpoint: "),
        ({"endpoint": "http://c:x"}, "tracing.endpoint: "),
        ({"endpoint": 4318}, "tracing.endpoint: Input should be a valid string"),
        ({"sample": 1.01}, "tracing.sample: Input should be less than or equal to 1"),
        ({"sample": -0.1}, "tracing.sample: Input should be greater than or equal to 0"),
        ({"sample": "all"}, "tracing.sample: Input should be a valid number"),
        ({"rate": 1}, "tracing.rate: unknown key"),
    ],
)
def test_mistakes_are_told_by_name(section: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of({"tracing": section})
    (told,) = caught.value.problems
    assert told.startswith(problem)


def test_a_span_goes_on_where_its_place_was_sent() -> None:
    spans = RecordedSpans()
    first = spans.tracer.start_span("first")
    sent = traceparent_of(first)
    assert trace_id_in(sent) in sent
    spans.tracer.start_span("second", context_of({"traceparent": sent})).end()
    (second,) = spans.ended()
    first.end()
    assert parent_id(second) == span_id(spans.ended("first")[0])
    assert trace_id_in(KEPT) == TRACE_ID


@pytest.mark.parametrize("sent", ["", "nonsense", "00-0-0-01", KEPT.replace("00-", "ff-", 1)])
def test_nonsense_begins_a_trace_of_its_own(sent: str) -> None:
    spans = RecordedSpans()
    spans.tracer.start_span("alone", context_of({"traceparent": sent})).end()
    assert spans.ended()[0].parent is None


def test_names_are_those_of_the_conventions() -> None:
    ours = {
        value
        for name, value in vars(span_names).items()
        if name.isupper() and not value.startswith("treeserve.") and "." in value
    }
    modules = (gen_ai_attributes, error_attributes, http_attributes, url_attributes)
    theirs = {value for module in modules for name, value in vars(module).items() if name.isupper()}
    assert len(ours) > 15
    assert ours - theirs == set()


def test_without_tracing_no_sdk_is_loaded() -> None:
    code = (
        "import sys, cluster.config, cluster.step_spans, deploy.api, deploy.output_spans\n"
        "from cluster.tracing import TracingConfig, open_tracing\n"
        "open_tracing(TracingConfig(), 'ingress')\n"
        "print([name for name in sys.modules if 'opentelemetry.exporter.otlp' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
