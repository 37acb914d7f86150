import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.core.errors import TraceError
from dflash_lab.core.trace.codec import from_json, to_json
from dflash_lab.core.trace.schema import TokenInfo, TraceHeader
from dflash_lab.core.types import Conversation, GenerateRequest, SamplingParams, StepRecord, StopReason, Turn

RECORD = StepRecord(0, 3, 1, (4, 5), 1, 6, (4, 6), 0)

records = st.builds(
    StepRecord,
    *[st.integers(0)] * 3,
    st.lists(st.integers()).map(tuple),
    *[st.integers(0)] * 2,
    st.lists(st.integers()).map(tuple),
    st.integers(0),
)
headers = st.builds(
    TraceHeader,
    prompt=st.text(),
    prompt_ids=st.lists(st.integers(0)).map(tuple),
    decode_s=st.none() | st.floats(0, 1e9),
    drafter=st.none() | st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans())),
    warnings=st.lists(st.text()).map(tuple),
    tokens=st.dictionaries(st.integers(0), st.builds(TokenInfo, st.text(), st.none() | st.text(), st.booleans())),
)


@given(headers, st.lists(records).map(tuple))
def test_round_trip(header, steps):
    assert from_json(TraceHeader, to_json(header), "header") == header
    assert from_json(tuple[StepRecord, ...], to_json(steps), "steps") == steps


def test_a_request_round_trips_with_its_nested_record():
    request = GenerateRequest("hi", SamplingParams(temperature=0.5, stop_ids=(2,)), drafter=None)
    assert from_json(GenerateRequest, to_json(request), "request") == request
    assert to_json(StopReason.LENGTH) == "length"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, r"steps: unknown key 'colour'; expected index, start"),
        ({"start": "3"}, r"steps\.start: expected int, got '3'"),
        ({"start": True}, r"steps\.start: expected int, got True"),
        ({"start": 3.0}, r"steps\.start: expected int, got 3\.0"),
        ({"draft_ids": 4}, r"steps\.draft_ids: expected a list, got 4"),
        ({"draft_ids": ["a"]}, r"steps\.draft_ids: expected int, got 'a'"),
        ({"timings": []}, r"steps\.timings: expected an object, got \[\]"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    with pytest.raises(TraceError, match=message):
        from_json(StepRecord, to_json(RECORD) | change, "steps")


def test_a_missing_key_and_a_wrong_mapping_key_are_named():
    data = to_json(RECORD)
    del data["bonus_id"]
    with pytest.raises(TraceError, match="steps: missing key 'bonus_id'"):
        from_json(StepRecord, data, "steps")
    with pytest.raises(TraceError, match=r"header\.tokens: expected int keys, got 'x'"):
        from_json(TraceHeader, to_json(TraceHeader()) | {"tokens": {"x": to_json(TokenInfo("a"))}}, "header")


def test_a_whole_number_is_a_float_and_other_objects_are_refused():
    assert from_json(float, 2, "x") == 2.0
    assert math.isclose(from_json(TraceHeader, to_json(TraceHeader(decode_s=1)), "header").decode_s, 1.0)
    with pytest.raises(TraceError, match="may hold numbers, strings, lists and mappings, got PosixPath"):
        to_json({"path": Path("x")})


def test_a_conversation_round_trips_as_a_prompt():
    request = GenerateRequest(Conversation((Turn("user", "hello"),)))
    assert from_json(GenerateRequest, to_json(request), "request") == request
