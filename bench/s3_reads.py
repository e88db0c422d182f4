"""What a read of an S3 object takes, by the clients that Python has, at the sizes that a dedup sweep reads.

    python bench/s3_reads.py [--case CASE_OR_NAME] [--json FILE] [--repeats N]

"messages" are reads of whole objects, by four threads, from a local versitygw, which closes the connection after each
answer as its default is; its own CPU is not counted. The bytes that arrive are counted.

- `waybill`: `QuickReads`, obstore's `get` with its errors named by the store.
- `botocore`: `Store.read`, botocore's `get_object`.
- `signer`: botocore's signer alone, and urllib3.
- `arrow`: pyarrow's file system, which asks for the object's size first.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from _report import Case, Done, Work, argument_parser, main

SIZES = {"20KB": 20_000, "150KB": 150_000, "500KB": 500_000, "2MB": 2_000_000}
READS = 200
THREADS = 4

Read = Callable[[str], Any]


def by_waybill(store: Any, endpoint: Any) -> Read:
    from waybill.dedup.index.lookup import QuickReads

    read: Read = QuickReads(store, endpoint).read
    return read


def by_botocore(store: Any, _: Any) -> Read:
    read: Read = store.read
    return read


def by_signer(store: Any, endpoint: Any) -> Read:
    import urllib3
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest

    from waybill.clients.s3 import current_keys, find_region

    pool = urllib3.PoolManager(maxsize=THREADS)
    signer = S3SigV4Auth(current_keys(endpoint), "s3", find_region(endpoint))

    def read(key: str) -> bytes:
        request = AWSRequest("GET", f"{endpoint.endpoint_url}/{store.bucket}/{key}")
        request.context["payload_signing_enabled"] = False
        signer.add_auth(request)
        return pool.request("GET", request.url, headers=dict(request.headers)).data

    return read


def by_arrow(store: Any, endpoint: Any) -> Read:
    from pyarrow.fs import S3FileSystem

    from waybill.clients.s3 import find_region

    files = S3FileSystem(
        access_key=endpoint.access_key,
        secret_key=endpoint.secret_key,
        endpoint_override=endpoint.endpoint_url,
        region=find_region(endpoint),
    )

    def read(key: str) -> bytes:
        with files.open_input_file(f"{store.bucket}/{key}") as file:
            content: bytes = file.read()
            return content

    return read


CLIENTS: dict[str, Callable[[Any, Any], Read]] = {
    "waybill": by_waybill,
    "botocore": by_botocore,
    "signer": by_signer,
    "arrow": by_arrow,
}


def prepare(client: Callable[[Any, Any], Read], size: int, _: argparse.Namespace) -> Work:
    from waybill.connections import S3Endpoint, find_connection
    from waybill.store import Store

    endpoint = S3Endpoint.of(find_connection("aws_default"))
    store = Store(endpoint, os.environ["WAYBILL_BENCH_BUCKET"], "reads")
    key = f"reads/{size}"
    if not store.exists(key):
        store.create_if_absent(key, os.urandom(size))
    read = client(store, endpoint)

    def work() -> Done:
        with ThreadPoolExecutor(THREADS) as pool:
            sizes = list(pool.map(lambda _: len(read(key)), range(READS)))
        assert set(sizes) == {size}
        return Done(READS, sum(sizes))

    return work


def run() -> None:
    from _dedup_waybill import s3_server

    arguments = argument_parser("reads of S3 objects: seconds and CPU seconds").parse_args()
    cases = [
        Case(name, case, partial(prepare, client, size))
        for case, size in SIZES.items()
        for name, client in CLIENTS.items()
    ]
    if arguments.only:
        main("", cases, arguments, baseline="botocore")
        return
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder, s3_server(Path(folder)):
        main(f"{READS} reads of S3 objects by {THREADS} threads", cases, arguments, baseline="botocore")


if __name__ == "__main__":
    run()
