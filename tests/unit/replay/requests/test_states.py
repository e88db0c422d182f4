"""The transition table: what each state allows, and walks over it against a model in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.replay.requests.states import (
    FINAL_STATES,
    OPEN_STATES,
    TRANSITIONS,
    RequestEvent,
    RequestState,
    states_before,
)


def test_no_event_leaves_a_final_state() -> None:
    assert not [state for state, _ in TRANSITIONS if state in FINAL_STATES]
    assert all(state.is_final for state in FINAL_STATES)


def test_each_state_that_is_not_final_can_be_claimed_and_cancelled() -> None:
    assert set(states_before(RequestEvent.CANCEL)) == set(states_before(RequestEvent.CLAIM)) == OPEN_STATES
    assert {TRANSITIONS[state, RequestEvent.CANCEL] for state in OPEN_STATES} == {RequestState.CANCELLED}


def test_an_open_request_has_no_worker_and_so_neither_progresses_nor_ends() -> None:
    assert {event for state, event in TRANSITIONS if state is RequestState.OPEN} == {
        RequestEvent.CLAIM,
        RequestEvent.CANCEL,
    }


def test_every_state_is_reachable() -> None:
    assert {RequestState.OPEN, *TRANSITIONS.values()} == set(RequestState)


@given(st.lists(st.sampled_from(RequestEvent), max_size=30))
def test_the_state_is_what_the_accepted_events_say(events: list[RequestEvent]) -> None:
    state = RequestState.OPEN
    accepted: list[RequestEvent] = []
    for event in events:
        ended = next(
            (each for each in accepted if each in (RequestEvent.COMPLETE, RequestEvent.FAIL, RequestEvent.CANCEL)), None
        )
        is_claimed = RequestEvent.CLAIM in accepted
        allowed = ended is None and (is_claimed or event in (RequestEvent.CLAIM, RequestEvent.CANCEL))
        assert ((state, event) in TRANSITIONS) == allowed
        if not allowed:
            continue
        state = TRANSITIONS[state, event]
        accepted.append(event)
        by_end = {
            RequestEvent.COMPLETE: RequestState.COMPLETED,
            RequestEvent.FAIL: RequestState.FAILED,
            RequestEvent.CANCEL: RequestState.CANCELLED,
        }
        expected = by_end.get(event) or (
            RequestState.ONGOING if RequestEvent.PROGRESS in accepted else RequestState.STARTED
        )
        assert state is expected
