"""`waybill streams`, `pause` and `resume`: which DAGs work on each stream, what is paused and why, and its problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from waybill.base.printable import printable
from waybill.config.models import Config
from waybill.interfaces.cli.render import PrintedColumn, print_json, print_table, time_text_of
from waybill.interfaces.cli.targets import load_streams, make_decision
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.catalogue import PAUSE, RESUME
from waybill.interfaces.operations.here import decide_pause
from waybill.services.coordination import (
    GroupProblem,
    GroupProblems,
    Pause,
    PauseAction,
    Stage,
    StreamPauses,
    ZooKeeperSession,
    read_pauses,
)
from waybill.watch.incidents.book_store import BookStore
from waybill.watch.incidents.finding import CONFIG, TASKS
from waybill.watch.incidents.incident import Incident


@dataclass(frozen=True, slots=True)
class _ShownStream:
    """A stream in the output of the commands."""

    name: str
    dags: Mapping[str, str]
    """The DAG of each stage."""
    pauses: StreamPauses
    problems: Sequence[GroupProblem]


# --- streams ----------------------------------------------------------------------------------------------------------


def list_streams(*, as_json: bool) -> None:
    """Print each stream with its DAGs, its pauses and its problems; see `waybill streams --help`."""
    config = load_streams()
    streams = _read_states(config)
    if as_json:
        print_json([_to_json(stream) for stream in streams])
        return
    columns = (PrintedColumn("stream"), PrintedColumn("ingest"), PrintedColumn("tables"), PrintedColumn("state"))
    print_table(columns, [_to_row(stream) for stream in streams])
    for stream in streams:
        for stages, pause in _by_decision(stream.pauses):
            typer.echo(
                f"\n{stream.name}: {stages} paused since {time_text_of(pause.at_ms)} by {printable(pause.by)}: "
                f"{printable(pause.reason)}"
            )
            typer.echo(f'  waybill resume {stream.name} --reason "…"')
        for problem in stream.problems:
            since = f" since {time_text_of(problem.since_ms)}" if problem.since_ms else ""
            typer.echo(f"\n{stream.name}: {problem.error}{since}: {_lines(problem.message)}")


def _lines(text: str) -> str:
    """Return a message, which may have several lines, for a terminal."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _read_states(config: Config) -> list[_ShownStream]:
    root, names = config.zookeeper.root, list(config.streams)
    with ZooKeeperSession.of(config) as session:
        pauses = read_pauses(session, root, names)
        problems = [
            problem
            for group in config.ingest_groups()
            for problem in GroupProblems.read(session, root, group).known.values()
        ]
        incidents = [each for each in BookStore(root, session, None).load().incidents if each.is_open]
    states = [
        _ShownStream(
            name,
            _dags(config, name),
            pauses[name],
            [*(each for each in problems if each.stream == name), *_incidents(incidents, name, _dags(config, name))],
        )
        for name in names
    ]
    broken = [
        _ShownStream(name, {}, StreamPauses(), [GroupProblem(name, "ConfigError", text)])
        for name, text in config.broken.items()
    ]
    return sorted(states + broken, key=lambda state: state.name)


def _incidents(incidents: Sequence[Incident], name: str, dags: Mapping[str, str]) -> list[GroupProblem]:
    """Return the findings of the watch about a stream's DAGs and config, as problems."""
    return [
        GroupProblem(name, f"incident: {each.promise}", f"{each.figure}: {each.detail}", each.since_ms)
        for each in incidents
        if (each.promise == TASKS and each.subject in dags.values())
        or (each.promise == CONFIG and each.stream in ("", name))
    ]


def _dags(config: Config, name: str) -> dict[str, str]:
    stream = config.stream(name)
    sections = {stage: stream.section(stage) for stage in Stage}
    return {stage: section.dag_id(stage, name) for stage, section in sections.items() if section is not None}


def _to_row(stream: _ShownStream) -> tuple[str, ...]:
    paused = stream.pauses.active()
    state = [f"paused: {', '.join(sorted(paused))}"] if paused else []
    state += sorted({problem.error for problem in stream.problems})
    tables = ", ".join(dag for stage, dag in stream.dags.items() if stage != Stage.INGEST)
    return stream.name, stream.dags.get(Stage.INGEST, "-"), tables or "-", ", ".join(state) or "ok"


def _by_decision(pauses: StreamPauses) -> list[tuple[str, Pause]]:
    """Return the decisions that pause stages now, each with the names of these stages."""
    stages: dict[Pause, list[str]] = {}
    for stage, pause in sorted(pauses.active().items()):
        stages.setdefault(pause, []).append(stage)
    return [(", ".join(each), pause) for pause, each in stages.items()]


def _to_json(stream: _ShownStream) -> dict[str, Any]:
    return {
        "stream": stream.name,
        "dags": dict(stream.dags),
        "paused": {stage: pause.to_fields() for stage, pause in sorted(stream.pauses.active().items())},
        "decisions": [each.to_fields() for each in stream.pauses.decisions],
        "problems": [
            {"error": each.error, "message": each.message, "since": each.since_ms or None} for each in stream.problems
        ],
    }


# --- pause and resume -------------------------------------------------------------------------------------------------


def run_decision(
    action: PauseAction, stream: str, stages: Sequence[Stage], *, reason: str, by: str | None, as_json: bool
) -> None:
    """Pause or resume stages of a stream (without names: all its stages).

    See `waybill pause --help` and `resume --help`.
    """
    decision = make_decision(reason, by)
    config = load_streams()
    config.stream(stream)
    operation = PAUSE if action is PauseAction.PAUSE else RESUME
    with logged(config, operation, decision, {"stream": stream, "stages": stages}) as done:
        pause, after = decide_pause(config, stream, action, stages, decision)
        done.text = f"{stream}: {', '.join(sorted(pause.stages))} {action}d"
    paused = sorted(after.active())
    if as_json:
        print_json({"stream": stream, "paused": paused, "decision": pause.to_fields()})
    elif action is PauseAction.PAUSE:
        typer.echo(f"paused {stream}: {', '.join(paused)}. Runs that have begun finish; later runs leave it out.")
        if Stage.INGEST in paused:
            typer.echo("Kafka keeps the new messages only as long as the topics' retention: resume before it ends.")
    else:
        rest = f"; still paused: {', '.join(paused)}" if paused else ""
        typer.echo(f"resumed {stream}: the next runs include it{rest}")
