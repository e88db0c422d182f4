"""Which table files botocore removes, and which are left to Arrow. The removal itself is tested against S3."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem, S3FileSystem

from waybill.config.connections import S3Endpoint
from waybill.tables.iceberg import io_properties, remove_files
from waybill.tables.iceberg.files import S3Removal, TableIO

ENDPOINT = S3Endpoint(endpoint_url="http://localhost:1", region="eu-west-1", access_key="key", secret_key="secret")


def test_files_that_are_not_on_s3_are_removed_by_arrow(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths[:4]:
        path.write_bytes(b"x")
    io = TableIO(io_properties(ENDPOINT))
    io.delete(str(paths[0]))
    assert io.delete_together([str(paths[1])]) == [str(paths[1])]
    remove_files(io, map(str, paths))  # the last one does not exist, which is no error
    assert not any(path.exists() for path in paths)


@pytest.mark.parametrize(
    "setting",
    [{"anonymous": True}, {"role_arn": "arn:aws:iam::123456789012:role/x"}, {"proxy_options": "http://localhost:1"}],
)
def test_client_with_a_setting_that_is_not_carried_over_has_no_removal_by_botocore(setting: dict[str, object]) -> None:
    assert S3Removal.like(S3FileSystem(region="eu-west-1", **setting), "bucket") is None


def test_removal_has_the_endpoint_and_keys_of_the_arrow_client() -> None:
    io = TableIO(io_properties(ENDPOINT))
    removal = S3Removal.like(io.fs_by_scheme("s3", "bucket"), "bucket")
    assert removal is not None
    assert removal.endpoint == ENDPOINT


def test_file_system_other_than_s3_has_no_removal_by_botocore() -> None:
    assert S3Removal.like(LocalFileSystem(), "bucket") is None
