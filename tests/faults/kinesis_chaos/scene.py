"""Play a scenario: split and merge a stream under load, run lanes, inject faults, and check the results."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from chaos.checker import Checked
from chaos.kinesis_proxy import KinesisEffect, KinesisProxy
from chaos.lanes import Job, Launch
from chaos.s3_proxy import Effect
from chaos.scenario import LaneFault
from chaos.scene import STREAM, Scene, SceneResult
from chaos.world import World

from kinesis_chaos.checker import Truth, compare, read_archive, read_kinesis
from kinesis_chaos.producers import PutLog, PutPlan, ReshardPlan, kinesis_client, put, reshard
from kinesis_chaos.scenario import KinesisScenario

PRELOAD = (
    "tenacity",
    "waybill.archive.ingest.kinesis.slot_source",
    "waybill.archive.ingest.kinesis.slot_assignment",
    "waybill.archive.ingest.kinesis.slot_fetching",
    "waybill.services.kinesis",
)
"""What lanes of Kinesis import besides those of Kafka."""

_CONNECTION = "kinesis_chaos"
_ACTIVE_SECONDS = 20.0
_FACTOR_OF_FAULTS = 3


@dataclass
class KinesisResult(SceneResult):
    """The results of a scenario and of its checks."""

    log: PutLog = field(default_factory=PutLog)
    shards: int = 0
    user_records: int = 0
    """Those that Kinesis holds."""
    kinesis_records: int = 0
    in_kinesis_twice: int = 0
    """Records that a producer put again, since it got no answer."""


class KinesisScene(Scene):
    """One scenario on the world's stack. `Scene` has the schedulers, the freezing and waking, and the judging."""

    scenario: KinesisScenario
    result: KinesisResult

    def __init__(self, world: World, scenario: KinesisScenario) -> None:
        super().__init__(world, scenario)
        self.result = KinesisResult(scenario.seed)
        self._plan_faults = list(scenario.plan_faults)
        self._putting = len(scenario.puts)

    # --- the stream and the proxies ---

    def _open(self) -> None:
        emulator = self._world.stack.start_kinesis()
        self._client = kinesis_client(emulator.endpoint_url)
        self._client.create_stream(StreamName=self.topic, ShardCount=self.scenario.shards)
        self._wait_until_active()
        self._brokers = {}
        self._open_archive()
        self._kinesis = KinesisProxy(emulator.endpoint_url)
        self._kinesis.__enter__()
        self._put_proxy = KinesisProxy(emulator.endpoint_url)
        self._put_proxy.__enter__()
        for action in ("PutRecord", "PutRecords"):
            self._put_proxy.hurt(action, *[KinesisEffect.CUT] * self.scenario.lost_answers)

    def _wait_until_active(self) -> None:
        deadline = time.monotonic() + _ACTIVE_SECONDS
        while True:
            summary = self._client.describe_stream_summary(StreamName=self.topic)["StreamDescriptionSummary"]
            if summary["StreamStatus"] == "ACTIVE":
                return
            assert time.monotonic() < deadline, f"{self.topic} is not active"
            time.sleep(0.05)

    def _close(self) -> None:
        self._give_up.set()
        self._zookeeper.close()
        self._s3.close()
        self._kinesis.__exit__()
        self._put_proxy.__exit__()
        self._client.delete_stream(StreamName=self.topic)
        self._client.close()

    # --- who is at work besides the lanes ---

    def _play(self) -> None:
        """Producers, who re-shards, schedulers, the watcher, and who hurts Kinesis, until the faults have happened."""
        scenario = self.scenario
        threads = [self._thread(self._produce, plan) for plan in scenario.puts]
        assert scenario.reshard is not None
        threads.append(self._thread(self._produce, scenario.reshard))
        threads += [self._thread(self._schedule) for _ in range(scenario.schedulers)]
        hurting, watcher = self._thread(self._hurt_kinesis), self._thread(self._look)
        if scenario.schedulers > 1:
            self.count("two schedulers at the same time")
        for thread in (*threads, hurting, watcher):
            thread.join()

    def _produce(self, plan: Any) -> None:
        client = kinesis_client(self._put_proxy.endpoint_url)
        try:
            if isinstance(plan, PutPlan):
                log = put(plan, client, self.topic, more=self._wants_more, stop=self._give_up)
            else:
                assert isinstance(plan, ReshardPlan)
                log = reshard(plan, client, self.topic, more=lambda: self._putting > 0, stop=self._give_up)
        finally:
            with self._lock:
                self._producing -= 1
                self._putting -= isinstance(plan, PutPlan)
            client.close()
        with self._lock:
            self.result.log.merge(log)

    def _hurt_kinesis(self) -> None:
        started = time.monotonic()
        for fault in self.scenario.kinesis_faults:
            pause = fault.after_seconds - (time.monotonic() - started)
            if self._give_up.wait(max(0.0, pause)) or not self._producing:
                return
            self._kinesis.hurt(fault.action, *fault.effects)

    def _faults_pending(self) -> bool:
        if super()._faults_pending():
            return True
        past = time.monotonic() - self._started
        return past < _FACTOR_OF_FAULTS * self.scenario.faults_within_seconds and bool(
            self._plan_faults or self._kinesis.pending
        )

    # --- schedulers ---

    def _run_once(self, *, hurt: bool = True) -> int:
        """Plan and run all lanes side by side. How many found something to do; -1 if there was no plan.

        Without faults, shards that wait for a slot count, too: a lane that reads an empty shard to its end archives
        nothing, and the next plan gives slots to the children.
        """
        fault = self._take_plan_fault() if hurt else None
        plan = self._launch("plan", failpoints=fault.text if fault else "")
        self._await_plan(plan, fault)
        answer = plan.answer()
        if answer is None or "lanes" not in answer:
            return -1
        jobs = []
        for lane in answer["lanes"]:
            lane_fault = self._take_fault() if hurt else None
            failpoint = lane_fault.text if lane_fault else ""
            jobs.append((self._launch("lane", lane=lane, failpoints=failpoint), lane_fault))
        for job, lane_fault in jobs:
            self._await(job, lane_fault)
        waiting = 0 if hurt else self._shards_without_slot()
        return waiting + sum(not _is_idle(job.answer()) for job, _ in jobs)

    def _shards_without_slot(self) -> int:
        prefix = f"{self.topic}/shards/{self.topic}/1_"
        pages = self._world.s3.get_paginator("list_objects_v2").paginate(Bucket=self._world.stack.bucket, Prefix=prefix)
        assigned = {
            each["Key"][len(prefix) :].removesuffix(".json") for page in pages for each in page.get("Contents", [])
        }
        listed = self._client.get_paginator("list_shards").paginate(StreamName=self.topic)
        return len({each["ShardId"] for page in listed for each in page["Shards"]} - assigned)

    def _take_plan_fault(self) -> LaneFault | None:
        with self._lock:
            if not self._plan_faults:
                return None
            self._armed += 1
            return self._plan_faults.pop(0)

    def _await_plan(self, job: Job, fault: LaneFault | None) -> None:
        """As `_await`. A fault that did not happen goes back to those of plans."""
        before = len(self._lane_faults)
        self._await(job, fault)
        with self._lock:
            if fault is not None and len(self._lane_faults) > before and fault in self._lane_faults:
                self._lane_faults.remove(fault)
                self._plan_faults.append(fault)

    def _launch(self, do: str, **what: Any) -> Job:
        with self._lock:
            self._launched += 1
            config = self._directory / f"streams-{self._launched % len(self.scenario.max_bytes)}.yaml"
        patches = {"s3_attempts": self.scenario.s3_attempts, "s3_read_timeout_seconds": 4}
        environment = {"WAYBILL_CONFIG": str(config), **self._connections()}
        launch = Launch(do, stream=STREAM, environment=environment, patches=patches, **what)
        return self._world.lanes.launch(launch, self._directory)

    # --- the end ---

    def _heal(self) -> None:
        self._kinesis.heal()
        super()._heal()

    def _reckon(self) -> None:
        super()._reckon()
        self.result.injected.update({f"Kinesis: {what}": n for what, n in self._kinesis.injected.items()})
        again = self._put_proxy.injected.total()
        self.result.injected.update({"Kinesis: answer to a producer lost": again} if again else {})
        self.result.injected.update({f"re-shards: {what}": n for what, n in self.result.log.done.items()})

    def _check(self) -> Checked:
        checked, world, result = Checked(), self._world, self.result
        truth = read_kinesis(self._client, self.topic)
        bucket = world.stack.bucket
        created = [key.removeprefix(f"{bucket}/") for key in self._s3.created]
        objects, _ = read_archive(world.s3, bucket, f"{self.topic}/backup/", created, checked)
        compare(objects, truth, result.log.acknowledged, checked)
        self._count(truth)
        return checked

    def _count(self, truth: Truth) -> None:
        result = self.result
        identities = [identity for shard in truth.shards.values() for identity in shard.records]
        contents = Counter(content for shard in truth.shards.values() for content in shard.records.values())
        result.shards, result.user_records = len(truth.shards), len(identities)
        result.kinesis_records = len({(each.shard_id, each.sequence) for each in identities})
        result.in_kinesis_twice = sum(count - 1 for count in contents.values())

    # --- small things ---

    async def _elsewhere(self, effect: Effect) -> int:
        if effect is Effect.DELETE_NODES:
            base = f"/waybill/{self.topic}/streams/{STREAM}/1"
            paths = [f"{base}/offsets", f"{base}/slots"]
            done = [await self._in_thread(self._world.delete_nodes, path) for path in paths]
            return max(done)
        return await super()._elsewhere(effect)

    async def _in_thread(self, act: Any, *args: Any) -> int:
        found: int = await asyncio.get_running_loop().run_in_executor(None, act, *args)
        return found

    def _connections(self) -> dict[str, str]:
        assert self._world.stack.kinesis is not None
        kinesis: Any = self._world.stack.kinesis.connection()
        kinesis["extra"]["endpoint_url"] = self._kinesis.endpoint_url
        return {**super()._connections(), f"AIRFLOW_CONN_{_CONNECTION.upper()}": json.dumps(kinesis)}

    def _config(self, max_bytes: int) -> dict[str, Any]:
        config = super()._config(max_bytes)
        stream = config["streams"][STREAM]
        stream |= {
            "source": "kinesis",
            "kinesis": {"connection": _CONNECTION, "slots": self.scenario.slots},
            "parser": {"name": "raw"},
        }
        return config


def _is_idle(answer: dict[str, Any] | None) -> bool:
    """Whether a lane has found nothing to archive in any of its slots, and has looked at all of them."""
    if answer is None or "report" not in answer:
        return False
    slots = [slot for stream in answer["report"]["streams"] for slot in stream["partitions"]]
    return all(slot["outcome"] == "up_to_date" and not slot["objects"] for slot in slots)
