"""The report of a run of many seeds, as text and as JSON."""

from __future__ import annotations

from chaos.report import Tally
from chaos.scene import SceneResult

from kinesis_chaos.scene import KinesisResult


class KinesisTally(Tally):
    """Sums over the seeds."""

    def add(self, result: SceneResult) -> None:
        super().add(result)
        assert isinstance(result, KinesisResult)
        for kafka in [name for name, count in self.figures.items() if not count]:
            del self.figures[kafka]
        self.figures.update(
            {
                "user records put": result.log.put,
                "acknowledged": len(result.log.acknowledged),
                "calls of producers of unknown outcome": result.log.unknown,
                "user records in Kinesis": result.user_records,
                "Kinesis records": result.kinesis_records,
                "user records that Kinesis holds twice": result.in_kinesis_twice,
                "shards": result.shards,
                "splits": result.log.done["splits"],
                "merges": result.log.done["merges"],
            }
        )
