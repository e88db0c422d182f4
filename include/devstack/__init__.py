"""The local stack: Kafka, ZooKeeper, S3 and Airflow as ordinary processes, for the demo and the tests.

    with Stack.start(Path("/tmp/stack")) as stack:
        os.environ.update(stack.environment())
        ...

docs/local-stack.md describes how it works and what it guarantees.

- `stack`: the stack as one object; `state`: the files of its state directory; `preflight`: its requirements.
- `kafka`, `zookeeper`, `s3`, `airflow`, `spark`, `registry`: one service each; `servers`: what they share.
- `control`, `guardian`, `reaper`, `processes`: start server processes, and leave none of them behind.
- `jars`, `cache`: downloads and builds.
- `demo`, `flights`, `produce`: the demo; `spark_env`: the Python environment of Spark's executors.
"""

from devstack.stack import Stack

__all__ = ["Stack"]
