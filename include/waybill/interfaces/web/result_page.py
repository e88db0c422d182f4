"""The page after an action: its outcome, and the state of its DAG run."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.interfaces.web.actions import ActionRefusal, Taken
from waybill.interfaces.web.figures import Tone, age_text
from waybill.watch.promises.action_log import ActionOutcome

_RUNS = {
    "running": ("At work", Tone.WARNING, "The DAG run is at work."),
    "success": ("Done", Tone.OK, "The DAG run has succeeded."),
    "failed": ("Failed", Tone.CRITICAL, "The DAG run has failed: the log of its task says why."),
}
_ORDERED = ("Ordered", Tone.WARNING, "The DAG run is queued.")
_UNKNOWN = ("Ordered", Tone.WARNING, "Airflow does not tell how far the DAG run is: look at the run.")
_UNFINISHED = (
    "No outcome yet",
    Tone.WARNING,
    "The action is at work, or was interrupted. If this does not change, the page of the stream shows whether the "
    "decision was made.",
)


@dataclass(frozen=True, slots=True)
class ResultPage:
    """The content of the page after an action."""

    title: str
    tone: Tone
    text: str
    detail: str
    """What was executed or ordered, or why it was not."""
    command: str
    """The command with the same effect, with the reason and the user."""
    href: str
    """The DAG run; '' if there is none."""
    back: str
    recorded: str
    """When and by whom the action was recorded; '' if it was not recorded, and so not executed."""
    is_final: bool
    """Whether the outcome is final."""


def refusal_page(refusal: ActionRefusal, back: str) -> ResultPage:
    """Return the page of an action that was not taken."""
    return ResultPage("Not done", Tone.CRITICAL, refusal.text, "", refusal.command, "", back, "", True)


def taken_page(taken: Taken, run_state: str, back: str, now_ms: int) -> ResultPage:
    """Return the page of an action that was recorded. `run_state`: the state of its DAG run; '' if it is unknown."""
    record, outcome = taken.record, taken.outcome
    recorded = f"Recorded as {record.place}, {age_text(record.at_ms, now_ms)}, by {record.by}: {record.reason}"
    title, tone, text = _verdict(outcome, run_state)
    return ResultPage(
        title,
        tone,
        text,
        "" if outcome is None or text == outcome.text else outcome.text,
        record.command,
        "" if outcome is None else outcome.href,
        back,
        recorded,
        outcome is not None and (not outcome.dag or run_state in ("success", "failed")),
    )


def _verdict(outcome: ActionOutcome | None, run_state: str) -> tuple[str, Tone, str]:
    if outcome is None:
        return _UNFINISHED
    if not outcome.is_done:
        return "Not done", Tone.CRITICAL, outcome.text
    if not outcome.dag:
        return "Done", Tone.OK, outcome.text
    return _ORDERED if run_state == "queued" else _RUNS.get(run_state, _UNKNOWN)
