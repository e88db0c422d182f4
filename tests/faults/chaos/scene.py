"""Play a scenario: run producers and lanes, inject faults, end all faults, and check the results."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from chaos.checker import Checked, Fault, ObjectWatch, check, check_text
from chaos.lanes import Job, Launch
from chaos.producers import Ledger, produce
from chaos.s3_proxy import Effect, S3Proxy
from chaos.scenario import LaneFault, Scenario
from chaos.tcp_proxy import TcpProxy, ZooKeeperProxy
from chaos.world import World

STREAM = "chaos"

_TICKS_SECONDS = 1.6
"""A lane sleeps longer than its session's timeout and the server's tick together."""

_FREEZE_AT_MOST_SECONDS = 20.0
_BACKLOG_SECONDS = 60.0
_OVERTIME_SECONDS = 75.0
"""How long a lane may take beyond its budget with every service down: its clients' patience, and the last upload."""
_DRAIN_SECONDS = 120.0
_LAUNCHES = 24
"""Plans and lanes that a scenario launches on an idle machine before it gives up on faults that do not happen."""

_BUSY_FACTOR = 3
_CUT_FETCH_BYTES = 6000
_TRIES = 20
_TRY_SECONDS = 0.25
_S3_READ_TIMEOUT_SECONDS = 4


@dataclass
class SceneResult:
    """The results of a scenario and of its checks. Without faults, the protocol is correct."""

    seed: int
    seconds: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    injected: Counter[str] = field(default_factory=Counter)
    """Faults that really happened."""
    lanes: int = 0
    objects: int = 0
    adopted: int = 0
    archived: int = 0
    """Messages in the archive at the end."""
    errors: Counter[str] = field(default_factory=Counter)
    """What lanes and plans failed with, by the error's name."""
    longest_overtime_seconds: float = 0.0
    """By how much a lane outlived its budget at most."""
    faults: list[Fault] = field(default_factory=list)


class Scene:
    """One scenario on the world's stack. `run` plays it; `server_fault_done` is set when the round's fault is over."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.scenario = scenario
        self.topic = f"chaos-{world.run}-{scenario.seed}"
        self.result = SceneResult(scenario.seed)
        self.server_fault_done = threading.Event()
        self.first_object = threading.Event()
        """Set once there is an object, or there never will be: the round's fault may come."""
        self._world = world
        self._directory = world.directory / self.topic
        self._directory.mkdir(parents=True)
        self._lock = threading.Lock()
        self._lane_faults = deque(scenario.lane_faults)
        self._armed = 0
        self._launched = 0
        self._failures: deque[str] = deque(maxlen=5)
        self._zombies: list[threading.Thread] = []
        self._producing = 0
        self._give_up = threading.Event()
        self._backlog = threading.Event()
        self._started = time.monotonic()
        self._freezing: asyncio.Future[Any] | None = None
        self._watch = ObjectWatch(world.s3, world.stack.bucket, f"{self.topic}/backup/")

    # --- all of it ---

    def run(self) -> SceneResult:
        """Play the scenario and check the results. An error of the harness itself is also a fault."""
        try:
            self._open()
            try:
                self._play()
                self._heal()
                self._drain()
                if not self._give_up.is_set():
                    self._reckon()
            finally:
                self._close()
        except Exception:
            self._fault("harness", traceback.format_exc())
        finally:
            self.first_object.set()
        self.result.seconds = time.monotonic() - self._started
        return self.result

    def abandon(self) -> None:
        """End soon, without checks."""
        self._give_up.set()
        self.server_fault_done.set()

    def _open(self) -> None:
        world, stack = self._world, self._world.stack
        world.create_topic(self.topic, self.scenario.partitions)
        self._brokers = {
            address: TcpProxy(world.proxies, *_split(address)) for address in stack.bootstrap_servers.split(",")
        }
        self._open_archive()

    def _open_archive(self) -> None:
        """Open the proxies in front of ZooKeeper and S3, and write the configs."""
        world, stack = self._world, self._world.stack
        self._zookeeper = ZooKeeperProxy(world.proxies, "127.0.0.1", stack.zookeeper.port)
        self._s3 = S3Proxy(
            world.proxies,
            stack.s3_endpoint_url,
            world.credentials,
            self.scenario.call_faults,
            guard=self.scenario.guard,
            elsewhere=self._elsewhere,
        )
        for number, max_bytes in enumerate(self.scenario.max_bytes):
            (self._directory / f"streams-{number}.yaml").write_text(json.dumps(self._config(max_bytes)))

    def _close(self) -> None:
        self._give_up.set()
        for proxy in (*self._brokers.values(), self._zookeeper, self._s3):
            proxy.close()
        self._world.delete_topic(self.topic)

    def _play(self) -> None:
        """Producers, schedulers and the watcher at the same time, until the faults have happened or time is up."""
        threads = [self._thread(self._produce, plan) for plan in self.scenario.producers]
        threads += [self._thread(self._schedule) for _ in range(self.scenario.schedulers)]
        watcher = self._thread(self._look)
        if self.scenario.schedulers > 1:
            self.count("two schedulers at the same time")
        for thread in threads:
            thread.join()
        watcher.join()

    def _thread(self, target: Callable[..., None], *args: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                target(*args)
            except Exception:
                self._fault("harness", traceback.format_exc())
                self._give_up.set()

        thread = threading.Thread(target=guarded, name=f"{self.topic}-{target.__name__}", daemon=True)
        if target == self._produce:
            self._producing += 1
        thread.start()
        return thread

    # --- producers and the watcher ---

    def _produce(self, plan: Any) -> None:
        try:
            servers = self._world.stack.bootstrap_servers
            ledger = produce(plan, servers, self.topic, more=self._wants_more, stop=self._give_up)
        finally:
            with self._lock:
                self._producing -= 1
        with self._lock:
            self.result.ledger.merge(ledger)

    def _look(self) -> None:
        while self._producing and not self._give_up.is_set():
            self._look_once()
            time.sleep(0.4)

    def _look_once(self) -> None:
        try:
            self._watch.look()
        except Exception as error:  # S3 may be down just now: the next look tells
            self._failures.append(f"watcher: {error}")
        if self._watch.first:
            self.first_object.set()

    def _wants_more(self) -> bool:
        """Asked by a producer that has written what it has to."""
        self._backlog.set()
        return self._faults_pending()

    def _faults_pending(self) -> bool:
        """Whether there is reason to go on: a fault that may still happen."""
        if not self.server_fault_done.is_set():
            return True
        # A busy machine gets more time, but not without end.
        past = (time.monotonic() - self._started) / self.scenario.faults_within_seconds
        if past > (1 if self._launched >= _LAUNCHES else _BUSY_FACTOR):
            return False
        return bool(self._lane_faults or self._armed or self._s3.pending)

    # --- schedulers ---

    def _schedule(self) -> None:
        """What Airflow does every minute, without the minute."""
        if self.scenario.backlog_first:
            self._backlog.wait(_BACKLOG_SECONDS)
        while (self._producing or self._faults_pending()) and not self._give_up.is_set():
            time.sleep(0.2 if self._run_once() > 0 else 0.4)

    def _run_once(self, *, hurt: bool = True) -> int:
        """Plan and run all lanes side by side. How many there were; -1 if there was no plan."""
        plan = self._launch("plan")
        self._await(plan)
        answer = plan.answer()
        if answer is None or "lanes" not in answer:
            return -1
        jobs = []
        for lane in answer["lanes"]:
            fault = self._take_fault() if hurt else None
            jobs.append((self._launch("lane", lane=lane, failpoints=fault.text if fault else ""), fault))
        for job, fault in jobs:
            self._await(job, fault)
        return len(jobs)

    def _launch(self, do: str, **what: Any) -> Job:
        with self._lock:
            self._launched += 1
            config = self._directory / f"streams-{self._launched % len(self.scenario.max_bytes)}.yaml"
        scenario = self.scenario
        brokers = {address: proxy.port for address, proxy in self._brokers.items()}
        patches = {
            "part_bytes": scenario.part_bytes,
            "fetch_bytes": scenario.fetch_bytes,
            "s3_attempts": scenario.s3_attempts,
            "s3_read_timeout_seconds": _S3_READ_TIMEOUT_SECONDS,
            "kafka": brokers,
        }
        environment = {"WAYBILL_CONFIG": str(config), **self._connections()}
        launch = Launch(do, stream=STREAM, environment=environment, patches=patches, **what)
        return self._world.lanes.launch(launch, self._directory)

    def _take_fault(self) -> LaneFault | None:
        with self._lock:
            if not self._lane_faults:
                return None
            self._armed += 1
            return self._lane_faults.popleft()

    def _give_fault_back(self, fault: LaneFault, *, happened: bool) -> None:
        with self._lock:
            self._armed -= 1
            if not happened:
                self._lane_faults.append(fault)

    def _await(self, job: Job, fault: LaneFault | None = None) -> None:
        """Until the process has ended, or is frozen: then another thread sees to it, and the scheduler goes on."""
        limit = self.scenario.budget_seconds + _OVERTIME_SECONDS
        in_time = job.wait(limit, or_stopped=True)
        if in_time and job.exit_code is None:
            thread = threading.Thread(target=self._thaw, args=(job, fault), daemon=True)
            self._zombies.append(thread)
            thread.start()
            return
        if fault is not None:
            self._give_fault_back(fault, happened=job.was_killed)
            if job.was_killed:
                self.count(f"SIGKILL at {fault.failpoint}")
        self._judge(job, in_time=in_time)

    def _thaw(self, job: Job, fault: LaneFault | None) -> None:
        """Let a frozen lane sleep until its session is over and another lane has worked, and then wake it."""
        assert fault is not None
        frozen, created = time.monotonic(), len(self._s3.created)
        while (slept := time.monotonic() - frozen) < _FREEZE_AT_MOST_SECONDS and not self._give_up.is_set():
            if slept > self.scenario.session_seconds + _TICKS_SECONDS and len(self._s3.created) > created:
                break
            time.sleep(0.05)
        others = "others went on" if len(self._s3.created) > created else "no lane went on"
        self.count(f"SIGSTOP, SIGCONT at {fault.failpoint}, {others}")
        job.signal(signal.SIGCONT)
        in_time = job.wait(self.scenario.budget_seconds + _OVERTIME_SECONDS)
        self._give_fault_back(fault, happened=True)
        self._judge(job, in_time=in_time, frozen_seconds=slept)

    def _judge(self, job: Job, *, in_time: bool, frozen_seconds: float = 0.0) -> None:
        """Check whether the end of a process is allowed."""
        if not in_time:
            job.signal(signal.SIGUSR1)  # every thread's stack goes to the log
            time.sleep(0.5)
            job.signal(signal.SIGKILL)
            job.wait(10.0)
            self._fault("hung", f"{job.launch.do} {job.number} took {job.seconds:.0f} s: {job.log}")
            return
        if job.launch.do == "lane" and not job.was_killed:
            overtime = job.seconds - frozen_seconds - self.scenario.budget_seconds
            self.result.longest_overtime_seconds = max(self.result.longest_overtime_seconds, overtime)
        if job.was_killed:
            return
        answer = job.answer()
        if job.exit_code or answer is None:
            self._fault("crash", f"{job.launch.do} {job.number} ended with {job.exit_code}: {job.log}")
        else:
            self._judge_answer(job, answer)

    def _judge_answer(self, job: Job, answer: dict[str, Any]) -> None:
        failures = [answer] if "error" in answer else []
        if "report" in answer:
            partitions = [p for stream in answer["report"]["streams"] for p in stream["partitions"]]
            failures += [p["failure"] for p in partitions if p["failure"]]
            with self._lock:
                self.result.lanes += 1
                self.result.adopted += sum(o["adopted"] for p in partitions for o in p["objects"])
        for failure in failures:
            self._failures.append(f"{failure['error']}: {failure['message']}")
            with self._lock:
                self.result.errors[failure["error"]] += 1
            if not failure["retriable"]:
                what = f"{job.launch.do} {job.number}: {failure['error']}: {failure['message']} ({job.log})"
                self._fault("wrong stop", what)

    # --- the end ---

    def _heal(self) -> None:
        """End all faults; frozen processes continue and end."""
        self._s3.heal()
        for proxy in (*self._brokers.values(), self._zookeeper):
            self._world.proxies.loop.call_soon_threadsafe(proxy.heal)
        for thread in self._zombies:
            thread.join()

    def _drain(self) -> None:
        """Run until there is nothing left to archive."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            if self._give_up.is_set():
                return
            left = self._run_once(hurt=False)
            if left == 0:
                return
            time.sleep(0.2)
        self._fault("not finished", f"after {_DRAIN_SECONDS:.0f} s without faults: {list(self._failures)}")

    def _reckon(self) -> None:
        result, world = self.result, self._world
        self._look_once()
        result.injected.update(self._s3.injected)
        verify = world.lanes.launch(
            Launch(
                "command",
                environment={
                    **world.stack.environment(),
                    "WAYBILL_CONFIG": str(self._directory / "streams-0.yaml"),
                },
                arguments=("verify", STREAM, "--no-table"),
            ),
            self._directory,
        )
        checked = self._check()
        result.objects, result.archived = checked.objects, checked.messages
        result.faults += checked.faults
        self._fault_each("changed", sorted(self._watch.changed))
        self._fault_each("changed", sorted(key for key, uploads in self._s3.created.items() if len(uploads) > 1))
        if not verify.wait(60.0) or verify.answer() != {"exit": 0}:
            self._fault("verify", f"waybill verify does not say that the archive is sound: {verify.log}")

    def _check(self) -> Checked:
        world, scenario = self._world, self.scenario
        where = (world.s3, world.stack.bucket, f"{self.topic}/backup/", self.topic, scenario.partitions)
        if scenario.delimiter:
            return check_text(*where, world.stack.bootstrap_servers, scenario.delimiter.encode())
        return check(*where, world.stack.bootstrap_servers, self.result.ledger)

    # --- faults elsewhere ---

    def broker_proxy(self, address: str) -> TcpProxy:
        """The proxy of this scenario's lanes to a broker, for the round's fault."""
        return self._brokers[address]

    async def _elsewhere(self, effect: Effect) -> int:
        """Execute the effect of a call to S3 on another service.

        Return how many connections, sessions or nodes it affected.
        """
        match effect:
            case Effect.CUT_ZOOKEEPER:
                return await _until_it_hits(self._zookeeper.cut)
            case Effect.EXPIRE_SESSION:
                return await _until_it_hits(self._zookeeper.expire)
            case Effect.FREEZE_ZOOKEEPER:
                self._freezing = asyncio.ensure_future(self._zookeeper.freeze(self.scenario.session_seconds + 1.0))
                return 1
            case Effect.FREEZE_KAFKA:
                seconds = self.scenario.kafka_frozen_seconds
                self._freezing = asyncio.gather(*(proxy.freeze(seconds) for proxy in self._brokers.values()))
                return 1
            case Effect.DELETE_NODES:
                path = f"/waybill/{self.topic}/streams/{STREAM}/1/offsets"
                return await asyncio.get_running_loop().run_in_executor(None, self._world.delete_nodes, path)
            case Effect.CUT_KAFKA:
                return sum([await proxy.cut() for proxy in self._brokers.values()])
            case Effect.CUT_FETCH:
                for proxy in self._brokers.values():
                    proxy.cut_after(_CUT_FETCH_BYTES, lambda: self.count(str(Effect.CUT_FETCH)))
        return 0

    # --- small things ---

    def count(self, what: str) -> None:
        """A fault happened."""
        with self._lock:
            self.result.injected[what] += 1

    def _fault(self, kind: str, what: str) -> None:
        with self._lock:
            self.result.faults.append(Fault(kind, 1, what))

    def _fault_each(self, kind: str, keys: list[str]) -> None:
        for key in keys:
            self._fault(kind, key)

    def _connections(self) -> dict[str, str]:
        """The stack's, by way of the proxies."""
        stack = self._world.stack
        found = dict(stack.environment())
        zookeeper = json.loads(found["AIRFLOW_CONN_ZOOKEEPER_DEFAULT"]) | {"port": self._zookeeper.port}
        s3 = json.loads(found["AIRFLOW_CONN_AWS_DEFAULT"])
        s3["extra"]["endpoint_url"] = self._s3.endpoint_url
        found["AIRFLOW_CONN_ZOOKEEPER_DEFAULT"] = json.dumps(zookeeper)
        found["AIRFLOW_CONN_AWS_DEFAULT"] = json.dumps(s3)
        return found

    def _config(self, max_bytes: int) -> dict[str, Any]:
        scenario = self.scenario
        return {
            "version": 1,
            "storage": {"bucket": self._world.stack.bucket, "prefix": self.topic},
            "zookeeper": {"root": self.topic, "session_timeout": f"{scenario.session_seconds}s"},
            "streams": {
                STREAM: {
                    "topics": [self.topic],
                    "upload": {"max_bytes": max_bytes, "max_age": f"{scenario.max_age_seconds}s"},
                    "ingest": {"lanes": scenario.lanes, "budget": f"{scenario.budget_seconds}s"},
                    "format": {"name": "text", "delimiter": scenario.delimiter} if scenario.delimiter else "kafka",
                    "parser": {"name": "json", "event_time": {"field": "time"}},
                    "table": "chaos.messages",
                }
            },
        }


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def _until_it_hits(act: Callable[[], Awaitable[int]]) -> int:
    """Try for some seconds: a client that was cut off takes a while until it is back, and may come in between."""
    for _ in range(_TRIES):
        if hit := await act():
            return hit
        await asyncio.sleep(_TRY_SECONDS)
    return 0
