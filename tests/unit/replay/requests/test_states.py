"""The transition table: what each state allows, and walks over it against a model in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.replay.requests.states import FINAL_STATES, OPEN_STATES, TRANSITIONS, Event, State, states_before


def test_no_event_leaves_a_final_state() -> None:
    assert not [state for state, _ in TRANSITIONS if state in FINAL_STATES]
    assert all(state.is_final for state in FINAL_STATES)


def test_each_state_that_is_not_final_can_be_claimed_and_cancelled() -> None:
    assert set(states_before(Event.CANCEL)) == set(states_before(Event.CLAIM)) == OPEN_STATES
    assert {TRANSITIONS[state, Event.CANCEL] for state in OPEN_STATES} == {State.CANCELLED}


def test_an_open_request_has_no_worker_and_so_neither_progresses_nor_ends() -> None:
    assert {event for state, event in TRANSITIONS if state is State.OPEN} == {Event.CLAIM, Event.CANCEL}


def test_every_state_is_reachable() -> None:
    assert {State.OPEN, *TRANSITIONS.values()} == set(State)


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_the_state_is_what_the_accepted_events_say(events: list[Event]) -> None:
    state = State.OPEN
    accepted: list[Event] = []
    for event in events:
        ended = next((each for each in accepted if each in (Event.COMPLETE, Event.FAIL, Event.CANCEL)), None)
        is_claimed = Event.CLAIM in accepted
        allowed = ended is None and (is_claimed or event in (Event.CLAIM, Event.CANCEL))
        assert ((state, event) in TRANSITIONS) == allowed
        if not allowed:
            continue
        state = TRANSITIONS[state, event]
        accepted.append(event)
        by_end = {Event.COMPLETE: State.COMPLETED, Event.FAIL: State.FAILED, Event.CANCEL: State.CANCELLED}
        expected = by_end.get(event) or (State.ONGOING if Event.PROGRESS in accepted else State.STARTED)
        assert state is expected
