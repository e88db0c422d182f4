"""The local stack: Kafka, ZooKeeper, S3 and Airflow as ordinary processes, for the demo and the tests.

    with Stack.start(Path("/tmp/stack")) as stack:
        os.environ.update(stack.environment())
        ...

docs/local-stack.md says how it works and what it promises.
"""

from devstack.stack import Endpoints, Stack

__all__ = ["Endpoints", "Stack"]
