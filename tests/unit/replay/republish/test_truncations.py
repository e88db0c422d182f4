"""What the archive has and the log does not, against a model of replicas that elect each other uncleanly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.chain.gaps import Gap, GapKind
from waybill.config.names import TopicPartition
from waybill.replay.republish.truncations import EpochRun, SeenEnd, leader_changes, lost_runs, possible_first_losses
from waybill.services.kafka.kafka import EpochEnd, LogRange

Log = list[tuple[int, int]]
"""The leader epoch and the number of each message; the list's index is the offset."""


class Replicas:
    """Three replicas of a topic-partition. Each copies what it likes of the leader's log, and each may lead next."""

    def __init__(self) -> None:
        self.logs: list[Log] = [[], [], []]
        self.leader, self.epoch, self.written = 0, 0, 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.logs[self.leader].append((self.epoch, self.written))
            self.written += 1

    def copy(self, replica: int, count: int) -> None:
        """A follower truncates what the leader does not have, and copies some of what follows."""
        if replica == self.leader:
            return
        own, leading = self.logs[replica], self.logs[self.leader]
        same = 0
        while same < min(len(own), len(leading)) and own[same] == leading[same]:
            same += 1
        self.logs[replica] = own[:same] + leading[same : same + max(count, len(own) - same)]

    def elect(self, replica: int) -> None:
        self.leader, self.epoch = replica, self.epoch + 1


def epoch_end_of(log: Log, current_epoch: int) -> Callable[[int], EpochEnd]:
    """Answer as a leader does: the largest epoch of the log up to the asked one, and where it ends (KIP-320)."""

    def answer(epoch: int) -> EpochEnd:
        if epoch >= current_epoch:
            return EpochEnd(current_epoch, len(log))
        known = sorted({each for each, _ in log if each <= epoch})
        if not known:
            return EpochEnd(-1, -1)
        end = max(offset for offset, (each, _) in enumerate(log) if each <= epoch) + 1
        return EpochEnd(known[-1], end)

    return answer


def runs_of(archived: dict[int, tuple[int, int]]) -> list[EpochRun]:
    """Return the archived offsets as batches of one message, newest first."""
    return [EpochRun(offset, offset + 1, archived[offset][0]) for offset in sorted(archived, reverse=True)]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4)),
        st.tuples(st.just("copy"), st.integers(0, 2), st.integers(0, 4)),
        st.tuples(st.just("elect"), st.integers(0, 2)),
        st.tuples(st.just("archive")),
    ),
    max_size=40,
)


@given(steps)
def test_lost_runs_are_the_archived_messages_that_the_log_does_not_have(history: list[tuple[str, ...]]) -> None:
    replicas = Replicas()
    archived: dict[int, tuple[int, int]] = {}
    for action, *figures in history:
        if action == "write":
            replicas.write(*figures)  # type: ignore[arg-type]
        elif action == "copy":
            replicas.copy(*figures)  # type: ignore[arg-type]
        elif action == "elect":
            replicas.elect(*figures)  # type: ignore[arg-type]
        else:
            log = replicas.logs[replicas.leader]
            if any(log[offset : offset + 1] != [message] for offset, message in archived.items()):
                break  # ingest stops at the first truncation
            archived |= {offset: log[offset] for offset in range(len(archived), len(log))}
    log = replicas.logs[replicas.leader]
    answer = epoch_end_of(log, replicas.epoch)
    lost = lost_runs(runs_of(archived), LogRange(0, len(log)), answer, None)
    found = {offset for run in lost for offset in range(run.first_offset, run.next_offset)}
    assert found == {offset for offset, message in archived.items() if log[offset : offset + 1] != [message]}
    for run in lost:
        assert {archived[offset][0] for offset in range(run.first_offset, run.next_offset)} == {run.leader_epoch}


def exact_epoch_end_of(log: Log, starts: dict[int, int]) -> Callable[[int], EpochEnd]:
    """Answer as Kafka's epoch cache does, which has the start of each epoch: `starts` are those of the leader."""

    def answer(epoch: int) -> EpochEnd:
        higher = [each for each in starts if each > epoch]
        if epoch == max(starts):
            return EpochEnd(epoch, len(log))
        if not higher:
            return EpochEnd(-1, -1)
        lower = [each for each in starts if each <= epoch]
        return EpochEnd(max(lower, default=epoch), starts[min(higher)])

    return answer


@given(steps)
def test_lost_messages_that_nobody_archived_begin_where_a_leader_began(history: list[tuple[str, ...]]) -> None:
    """A watch looks after each step, and the archive never has a message that is lost."""
    replicas = Replicas()
    archived: dict[int, tuple[int, int]] = {}
    drops: list[tuple[SeenEnd, Log]] = []
    for number, (action, *figures) in enumerate(history):
        before = list(replicas.logs[replicas.leader])
        if action == "write":
            replicas.write(*figures)  # type: ignore[arg-type]
        elif action == "copy":
            replicas.copy(*figures)  # type: ignore[arg-type]
        elif action == "elect":
            replicas.elect(*figures)  # type: ignore[arg-type]
        else:
            archived |= {offset: before[offset] for offset in range(len(archived), len(before))}
        log = replicas.logs[replicas.leader]
        if any(log[offset : offset + 1] != [message] for offset, message in archived.items()):
            return
        if len(log) < len(before):
            drops.append((SeenEnd(number, len(before), len(archived)), before))
    log = replicas.logs[replicas.leader]
    starts: dict[int, int] = {}
    for offset, (epoch, _) in enumerate(log):
        starts.setdefault(epoch, offset)
    starts.setdefault(replicas.epoch, len(log))
    epoch_end = exact_epoch_end_of(log, starts)
    for number, (drop, before) in enumerate(drops):
        runs = sorted(run for run in runs_of(archived) if run.first_offset >= drop.committed_offset - 1)
        changes = leader_changes(runs, len(archived), drop, epoch_end)
        earlier = [each for each, _ in drops[:number]]
        possible = possible_first_losses(drop, earlier, changes)
        lost = [offset for offset in range(len(before)) if log[offset : offset + 1] != [before[offset]]]
        if any(each.end_offset > drop.committed_offset for each in earlier):
            assert possible[0] == drop.committed_offset, "an older log may be back, which says nothing of the lost one"
        else:
            assert not lost or lost[0] in possible, "the first lost offset is one of them"
        assert all(drop.committed_offset <= offset < drop.end_offset for offset in possible)


def test_loss_of_unarchived_messages_begins_where_the_new_leader_began() -> None:
    """7,000 of 10,000 messages were archived, and the new leader had 8,000."""
    drop, archived = SeenEnd(1, 10_000, 7_000), [EpochRun(0, 7_000, 2)]
    answers = {2: EpochEnd(2, 8_000), 3: EpochEnd(3, 8_000)}
    assert leader_changes(archived, 7_000, drop, lambda epoch: answers.get(epoch, EpochEnd(-1, -1))) == [8_000]
    answers[3] = EpochEnd(3, 9_500)
    assert leader_changes(archived, 7_000, drop, lambda epoch: answers.get(epoch, EpochEnd(-1, -1))) == [8_000]


def test_loss_of_unarchived_messages_is_found_when_the_new_log_is_archived_and_deleted_from_kafka() -> None:
    drop, archived = SeenEnd(1, 10_000, 7_000), [EpochRun(0, 8_000, 2), EpochRun(8_000, 12_000, 4)]
    answers = {4: EpochEnd(4, 20_000)}
    assert leader_changes(archived, 12_000, drop, answers.__getitem__) == [8_000]


def test_log_that_came_back_says_nothing_of_the_one_that_took_its_place() -> None:
    """Replica 0 had offset 0. Replica 1 led without it and wrote 0 and 1. Now replica 0 leads again, with its own 0."""
    first, second = SeenEnd(1, 1, 0), SeenEnd(2, 2, 0)
    answers = {0: EpochEnd(0, 1), 1: EpochEnd(0, 1), 2: EpochEnd(2, 1)}
    changes = leader_changes([], 0, second, lambda epoch: answers.get(epoch, EpochEnd(-1, -1)))
    assert possible_first_losses(second, [first], changes) == [0, 1]
    assert possible_first_losses(first, [], []) == []


def test_shorter_log_of_the_same_leader_was_an_old_answer() -> None:
    answers = {2: EpochEnd(2, 10_000)}
    drop, archived = SeenEnd(1, 10_000, 7_000), [EpochRun(0, 7_000, 2)]
    assert leader_changes(archived, 7_000, drop, lambda epoch: answers.get(epoch, EpochEnd(-1, -1))) == []


def test_decision_is_believed_when_kafka_has_deleted_what_would_show_the_loss() -> None:
    runs = [EpochRun(100, 150, 3), EpochRun(0, 100, 2)]
    log = LogRange(500, 600)
    assert lost_runs(runs, log, lambda epoch: EpochEnd(epoch, 500), None) == []
    assert lost_runs(runs, log, lambda epoch: EpochEnd(epoch, 500), 120) == [EpochRun(120, 150, 3)]


def test_log_shows_more_than_the_decision_when_an_older_epoch_was_taken_back_too() -> None:
    """Epoch 4 led from offset 80 on, then epoch 5 continued the log of epoch 3: the leader answers for epoch 4."""
    answers = {5: EpochEnd(4, 120), 3: EpochEnd(3, 80)}
    runs = [EpochRun(100, 150, 5), EpochRun(0, 100, 3)]
    found = lost_runs(runs, LogRange(0, 130), answers.__getitem__, 120)
    assert found == [EpochRun(80, 100, 3), EpochRun(100, 150, 5)]


def test_gap_marker_in_the_lost_part_is_no_message() -> None:
    runs = [EpochRun(120, 150, 3), EpochRun(100, 120, -1), EpochRun(0, 100, 3)]
    found = lost_runs(runs, LogRange(0, 90), lambda _: EpochEnd(3, 90), None)
    assert found == [EpochRun(90, 100, 3), EpochRun(120, 150, 3)]


def test_end_that_a_watch_saw_belongs_to_a_loss_between_what_was_archived_and_that_end() -> None:
    seen = SeenEnd(1_000, 100, 70)
    at_once = Gap(TopicPartition("flights", 0), 1, 60, 70, GapKind.TRUNCATED, "why", "ada", 1_000)
    assert seen.is_of(70, None)
    assert seen.is_of(70, at_once)
    assert not seen.is_of(100, None), "the archive has all of it"
    assert not seen.is_of(60, None), "more was archived than that"
    assert not seen.is_of(70, replace(at_once, accepted_at_ms=999)), "it was accepted before"
