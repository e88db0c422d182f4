"""One Spark application for the streams of a job: choose them, process them in parallel, report, and end.

A run of one stream is a group of one: the same code.
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark import SparkContext

from waybill.base.errors import WaybillError, expected
from waybill.base.metering import Tally, meter
from waybill.config.models import Config, load_valid_streams
from waybill.config.names import Stage
from waybill.tables.audit import AuditRecord, append_results
from waybill.tables.spark.group_results import GroupResults, ResultsRecorder, StreamResult
from waybill.tables.spark.job import jvm_cpu_seconds, log_failure, write_report
from waybill.tables.spark.selection import active_streams, select_streams
from waybill.tables.spark.side_by_side import StartedOnce, StreamWork, run_side_by_side
from waybill.tables.staging.services import StagingServices, services_of

logger = logging.getLogger(__name__)

_PARALLEL = 4


@dataclass(frozen=True, slots=True)
class Application:
    """The objects that the work on all streams of one application shares."""

    config: Config
    services: StagingServices
    context: StartedOnce[SparkContext]
    """Starts Spark at the first call: without work there is no Spark."""
    is_group: bool
    """Whether the application does all steps for its streams, also steps that are separate tasks in a stream's own
    DAG."""
    audits: list[AuditRecord] = field(default_factory=list)
    """The audits of all streams. Their results are appended to the table of results at the end, in one snapshot."""


def check_options(parser: ArgumentParser, options: Namespace) -> None:
    """End the program with a usage error if the options of `waybill.tables.spark.job.job_parser` contradict each
    other."""
    if options.group is None and not options.streams:
        parser.error("give --stream STREAM or --group GROUP")
    if options.run is not None and options.group is None:
        parser.error("--run needs --group")
    if options.resume and options.run is None:
        parser.error("--resume needs --run")
    if options.parallel is not None and options.parallel < 1:
        parser.error(f"--parallel is {options.parallel}: give a number of at least 1")


def run_application(
    job: Stage,
    options: Namespace,
    start: Callable[[Config, str], SparkContext],
    do: Callable[[Application, StreamWork], None],
) -> int:
    """Run the job for the streams of the options, and return the exit code.

    `start` is called with the config and the application's name, if Spark is needed. `do` processes one stream.

    Exit code 1: with `--run`, another try may succeed; without it, a stream failed or has an alert.
    """
    label = options.group or ", ".join(options.streams)
    try:
        config = load_valid_streams(options.config)
        names = select_streams(config, job, options.group, options.streams)
        with services_of(config) as services:
            run = _Run(job, options, config, services, start, do)
            return run.execute(names)
    except WaybillError as error:
        log_failure(logger, str(job), label, error)
        return 1


@dataclass(slots=True)
class _Run:
    job: Stage
    options: Namespace
    config: Config
    services: StagingServices
    start: Callable[[Config, str], SparkContext]
    do: Callable[[Application, StreamWork], None]

    def execute(self, selected: Sequence[str]) -> int:
        recorder = self._recorder(selected)
        done_before = {} if recorder is None else recorder.results.streams
        names = active_streams(self.config, self.job, [name for name in selected if name not in done_before])
        application = Application(
            self.config, self.services, StartedOnce(self._start), is_group=self.options.group is not None
        )
        finished = run_side_by_side(
            str(self.job),
            names,
            lambda work: self.do(application, work),
            parallel=self._parallel(),
            on_end=lambda work: self._end_stream(work, recorder),
            can_go_on=lambda: _is_alive(application.context.started),
        )
        self._append_audits(application.audits, finished, recorder)
        self._write_report(finished)
        meter.add(Tally(cpu_seconds={"jvm": jvm_cpu_seconds()}))
        self.services.store_usage(str(self.job), names)
        results = [work.result() for work in finished]
        lost = len(finished) < len(names)
        if lost:
            logger.error("%s: Spark has ended: %d streams were not worked on", self.job, len(names) - len(finished))
        self._log_end(results, len(done_before))
        if recorder is None:
            return 0 if not lost and all(result.is_sound for result in results) else 1
        if not lost:
            recorder.end()
        return 1 if lost or any(result.retriable for result in results) else 0

    def _parallel(self) -> int:
        if self.options.parallel is not None:
            return int(self.options.parallel)
        if self.options.group is None:
            return _PARALLEL
        return self.config.group(self.options.group).spark_job(self.job).parallel

    def _start(self) -> SparkContext:
        streams = self.options.streams
        label = self.options.group or (streams[0] if len(streams) == 1 else f"{len(streams)}-streams")
        return self.start(self.config, f"waybill-{self.job}-{label}")

    # --- results ---

    def _recorder(self, selected: Sequence[str]) -> ResultsRecorder | None:
        """Return the recorder of the run's results; with `--resume` they contain the results of earlier tries."""
        options, store = self.options, self.services.store
        if options.run is None:
            return None
        earlier = GroupResults.load(store, options.group, str(self.job), options.run) if options.resume else None
        return ResultsRecorder(store, options.group, str(self.job), options.run, selected, earlier)

    def _append_audits(
        self, audits: Sequence[AuditRecord], finished: Sequence[StreamWork], recorder: ResultsRecorder | None
    ) -> None:
        """Append the results of all audits. An unexpected exception becomes an alert of the stream."""
        if not audits:
            return
        try:
            self._append(audits)
            return
        except Exception:
            logger.exception(
                "the results of %d audits cannot be appended together: each is appended alone", len(audits)
            )
        works = {work.stream: work for work in finished}
        for audit in audits:
            try:
                self._append([audit])
            except Exception as error:
                failure = expected(f"the results of the audit of stream {audit.stream}", error)
                logger.exception("%s", failure)
                work = works.get(audit.stream)
                if work is None:  # Spark has ended before the work on this stream, so the application fails
                    continue
                work.alerts.append(str(failure))
                if recorder is not None:
                    recorder.add(work.result())

    def _append(self, audits: Sequence[AuditRecord]) -> None:
        try:
            append_results(self.services.catalog, audits)
        except WaybillError as error:
            # The rows are published or held already, and each audit is an object, which maintenance appends.
            logger.warning("the results of %d audits are not in the table of results yet: %s", len(audits), error)

    def _end_stream(self, work: StreamWork, recorder: ResultsRecorder | None) -> None:
        for alert in work.alerts:
            logger.error("%s %s", self.job, alert)
        if recorder is not None:
            recorder.add(work.result())

    def _write_report(self, finished: Sequence[StreamWork]) -> None:
        """Write the streams' reports to the file of `--report`; nothing if there is none."""
        reports: list[dict[str, Any]] = [report for work in finished for report in work.reports]
        if reports or not any(work.errors for work in finished):
            one = self.job is Stage.MAINTENANCE and len(reports) == 1
            write_report(self.options.report, reports[0] if one else reports)

    def _log_end(self, results: Sequence[StreamResult], earlier: int) -> None:
        if len(results) <= 1 and self.options.group is None:
            return
        counts = {status: sum(result.status == status for result in results) for status in ("done", "failed")}
        logger.info(
            "%s of %d streams: %d did something, %d had nothing new, %d failed%s",
            self.job,
            len(results),
            counts["done"],
            len(results) - sum(counts.values()),
            counts["failed"],
            f"; {earlier} were done by an earlier try" if earlier else "",
        )


def _is_alive(context: SparkContext | None) -> bool:
    """Return whether Spark can run further tasks: its JVM answers, and the context is not stopped."""
    if context is None:
        return True
    try:
        return not context._jsc.sc().isStopped()
    except Exception:  # any exception that py4j raises when the JVM has ended
        return False
