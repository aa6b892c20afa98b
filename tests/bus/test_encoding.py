"""Commits as bytes: everything arrives, nothing is larger than it may be, garbage is no crash."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_grpc.bus.base import Committed
from a2a_grpc.bus.encoding import decode, encode
from a2a_grpc.storage.values import Outcome, OutcomeKind
from tests.support import WORKING

texts = st.text(st.characters(codec="utf-8"), max_size=40)
outcomes = st.builds(
    Outcome,
    st.sampled_from(OutcomeKind),
    st.integers(0, 2**63 - 1),
    st.binary(max_size=300),
)
commits = st.builds(
    Committed,
    task_id=texts,
    version=st.integers(0, 2**63 - 1),
    sequence=st.integers(0, 2**63 - 1),
    state=st.integers(-(2**31), 2**31 - 1),
    payloads=st.lists(st.binary(max_size=300), max_size=5),
    operation_id=texts,
    starts=st.booleans(),
    settles=st.booleans(),
    outcome=st.none() | outcomes,
)


@given(commits)
def test_every_commit_arrives_as_it_was(committed: Committed) -> None:
    told = decode(encode(committed, 2**20))
    assert told.committed == committed
    assert not told.look_up


@given(commits, st.integers(400, 1500))
def test_what_is_too_large_goes_by_reference(committed: Committed, limit: int) -> None:
    data = encode(committed, limit)
    assert len(data) <= limit
    told = decode(data)
    assert told.look_up == (committed.outcome is not None and told.committed.outcome is None)
    assert told.committed.payloads in (committed.payloads, [])
    expected = committed._replace(payloads=(), outcome=None)
    assert told.committed._replace(payloads=(), outcome=None) == expected


def test_a_large_outcome_and_large_payloads_are_left_out_each_for_itself() -> None:
    outcome = Outcome(OutcomeKind.MESSAGE, 1, b"x" * 1000)
    full = Committed("t", 2, 2, WORKING, [b"a", b"b"], "o", outcome=outcome)
    told = decode(encode(full, 500))
    assert told.look_up
    assert told.committed == full._replace(outcome=None)
    told = decode(encode(full._replace(payloads=[b"y" * 1000]), 1100))
    assert not told.look_up
    assert told.committed == full._replace(payloads=[])


def test_a_commit_without_events_is_small() -> None:
    assert len(encode(Committed("t" * 36, 1, 1, WORKING, operation_id="o" * 36), 2**20)) < 110


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"commit|OutcomeKind"):
        decode(data)


def test_damaged_commits_are_value_errors_or_other_commits() -> None:
    outcome = Outcome(OutcomeKind.TASK, 3, b"abc")
    data = encode(Committed("task", 3, 3, WORKING, [b"one", b"two"], "o", True, True, outcome), 999)
    for length in range(len(data)):
        with pytest.raises(ValueError, match="commit"):
            decode(data[:length])
    with pytest.raises(ValueError, match="behind"):
        decode(data + b"x")
    with pytest.raises(ValueError, match="format"):
        decode(b"\x02" + data[1:])
    source = random.Random(7)
    for _ in range(2000):
        damaged = bytearray(data)
        damaged[source.randrange(len(data))] = source.randrange(256)
        try:
            decode(bytes(damaged))
        except ValueError:
            continue
