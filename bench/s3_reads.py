"""Read S3 objects of the sizes that a dedup sweep reads, by each of Python's clients, with four threads.

    python bench/s3_reads.py [--case SIZE_OR_NAME] [--repeats N] [--json FILE]

"messages" are reads of whole objects from a local versitygw, which by default closes the connection after each answer.
Its CPU seconds are not counted.

- `waybill`: `QuickReads`: obstore's `get`, with the store's errors.
- `botocore`: `Store.read`: botocore's `get_object`.
- `signer`: botocore's signer with urllib3.
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

from measurement import Case, Sample, Work, argument_parser, print_rates, run_cases, run_only_case, write_json
from services import BUCKET, s3_server

SIZES = {"20KB": 20_000, "150KB": 150_000, "500KB": 500_000, "2MB": 2_000_000}
READS = 200
THREADS = 4

Read = Callable[[str], Any]


def waybill(store: Any, endpoint: Any) -> Read:
    from waybill.tables.dedup.index.lookup import QuickReads

    return QuickReads(store, endpoint).read


def botocore(store: Any, _: Any) -> Read:
    return store.read


def signer(store: Any, endpoint: Any) -> Read:
    import urllib3
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest

    from waybill.services.clients.s3 import current_keys, find_region

    pool = urllib3.PoolManager(maxsize=THREADS)
    auth = S3SigV4Auth(current_keys(endpoint), "s3", find_region(endpoint))

    def read(key: str) -> bytes:
        request = AWSRequest("GET", f"{endpoint.endpoint_url}/{store.bucket}/{key}")
        request.context["payload_signing_enabled"] = False
        auth.add_auth(request)
        return pool.request("GET", request.url, headers=dict(request.headers)).data

    return read


def arrow(store: Any, endpoint: Any) -> Read:
    from pyarrow.fs import S3FileSystem

    from waybill.services.clients.s3 import find_region

    files = S3FileSystem(
        access_key=endpoint.access_key,
        secret_key=endpoint.secret_key,
        endpoint_override=endpoint.endpoint_url,
        region=find_region(endpoint),
    )

    def read(key: str) -> bytes:
        with files.open_input_file(f"{store.bucket}/{key}") as file:
            return file.read()

    return read


def read_objects(client: Callable[[Any, Any], Read], case: str, _: argparse.Namespace) -> Work:
    from waybill.config.connections import S3Endpoint, find_connection
    from waybill.services.store import Store

    endpoint = S3Endpoint.of(find_connection("aws_default"))
    store = Store(endpoint, os.environ[BUCKET], "reads")
    key = f"reads/{case}"
    if not store.exists(key):
        store.create_if_absent(key, os.urandom(SIZES[case]))
    read = client(store, endpoint)

    def work() -> Sample:
        with ThreadPoolExecutor(THREADS) as pool:
            sizes = list(pool.map(lambda _: len(read(key)), range(READS)))
        assert set(sizes) == {SIZES[case]}
        return Sample(READS, sum(sizes))

    return work


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    clients = (waybill, botocore, signer, arrow)
    cases = [Case(client.__name__, size, partial(read_objects, client)) for size in SIZES for client in clients]
    if arguments.only:
        run_only_case(cases, arguments)
        return
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder, s3_server(Path(folder)):
        rows = run_cases(cases, arguments)
    print_rates(f"{READS} reads of S3 objects by {THREADS} threads", rows, baseline="botocore")
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
