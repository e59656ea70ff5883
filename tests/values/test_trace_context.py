"""W3C Trace Context: parsing and propagation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import TraceState

from pos_gateway.domain.trace_context import TraceContext

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"

WELL_FORMED = [PARENT, f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-ff", f"cc-{TRACE}-{SPAN}-01"]
MALFORMED = [
    *(None, "", "00", 7, b"00", [PARENT], {"a": 1}),
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f"00-{TRACE[:-1]}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-1",
    f"00-{TRACE}-{SPAN}-01-more",
    f" {PARENT}",
    f"{PARENT}\n",
    f"{PARENT}\r\nHost: elsewhere",
    PARENT.replace("7", "\u0667"),  # a digit to Python
    "x" * 100_000,
]


@pytest.mark.parametrize("parent", WELL_FORMED)
def test_a_well_formed_traceparent_is_propagated_unchanged(parent: str) -> None:
    headers = {"traceparent": parent, "tracestate": STATE}
    found = TraceContext.of({**headers, "task": "x"})
    assert found is not None
    assert found.headers == headers
    assert TraceContext.read(str(found)) == found


@pytest.mark.parametrize("parent", MALFORMED)
def test_a_malformed_traceparent_is_dropped_with_its_tracestate(parent: object) -> None:
    assert TraceContext.of({"traceparent": parent, "tracestate": STATE}) is None


@pytest.mark.parametrize(
    "state",
    [
        *(None, "", 7, ["a=b"], "a", "a=", "=b", "A=b", "a=b\r\nHost: x", "a=\u00e4", "a=b,"),
        "a=" + "b" * 257,
        ",".join(["a=b"] * 33),
        ",".join(["a=" + "b" * 250] * 3),
        " " * 100_000 + "=",
    ],
)
def test_a_malformed_or_long_tracestate_is_dropped(state: object) -> None:
    found = TraceContext.of({"traceparent": PARENT, "tracestate": state})
    assert found is not None
    assert found.headers == {"traceparent": PARENT}
    assert TraceContext.read(str(found)) == found


def test_a_tracestate_may_have_512_characters_and_blanks() -> None:
    state = "a=" + "b c" * 85 + " , 1@b=" + "c" * 248
    assert len(state) == 512
    assert TraceContext.read(f"{PARENT} {state}") == (PARENT, state)


@given(st.text(alphabet="a1@_= ,\t~", max_size=40))
def test_an_accepted_tracestate_is_valid_for_opentelemetry_too(state: str) -> None:
    found = TraceContext.of({"traceparent": PARENT, "tracestate": state})
    assert found is not None
    members = [each.strip(" \t").split("=")[0] for each in found.state.split(",") if each]
    assert len(TraceState.from_header([found.state])) == len(set(members))


@given(st.text())
def test_a_parsed_traceparent_is_well_formed_or_none(text: str) -> None:
    found = TraceContext.read(text)
    assert found is None or str(found) == text
