"""Errors survive pickle, keep their names in the journal, and are all in the diagram of the module's docstring."""

from __future__ import annotations

import pickle
import re

import pytest

from waybill.base import errors
from waybill.base.documents import Document

EXAMPLES = [
    errors.ConfigError("the value is wrong"),
    errors.CorruptBatch("backup/t/1_0.kafka", 1234, "cut short"),
    errors.DamagedObject("backup/t/1_0.seq", 0, "cut short"),
    errors.RegistryUnavailable("http://registry", "503", "connection 'registry'"),
    errors.AirflowUnavailable("http://airflow", "503", "connection 'waybill_airflow'"),
    errors.RegistryRefused("http://registry", "401", "connection 'registry'"),
    errors.ScratchUnusable("/scratch", "full"),
    errors.StoreUnfit("bucket 'b'", ["it overwrites"], "Use another"),
    errors.ObjectExists("a/b"),
    errors.ObjectMissing("a/b"),
    errors.RetentionGap("t", 3, 100, 250),
    errors.TopicRecreated("t", 3, "a", "b"),
    errors.StreamRecreated("t", "a", "b"),
    errors.ShardNotOwned("t", 3, "shardId-000000000001", 2),
    errors.LogTruncated("t", 3, 100, 90, 7),
    errors.ChainBroken("t/3: x is missing", 100, 250),
    errors.ChainGap("t/3: x is missing"),
    errors.MixedFormats("t/3: two formats"),
    errors.DocumentTooNew("the plan is too new"),
    errors.DamagedFile("a.t", "s3://b/f.parquet", "not Parquet"),
    errors.ParserBroken("module:Class", "raised"),
    errors.OutputDiffers("a/b", "its size"),
    errors.SweepUnsound("7", 10, 8, 1, 1),
    errors.IndexDamaged("a/b", "its checksum differs"),
    errors.ReplayRefused("is empty", "keys"),
    errors.ReplayQuotaReached("20 requests are open", 60),
    errors.ProcedureFailed("rewrite_data_files", "a.t", "no memory"),
    errors.CompactionUnsound("a.t", 7, 10, 9),
    errors.UnexpectedFailure("flights/3", KeyError("x")),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickle_keeps_class_message_and_attributes(error: errors.WaybillError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert copy.retriable == error.retriable


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (errors.RetentionGap("t", 3, 100, 250), "RetentionGap"),
        (errors.ChainGap("t/3: x is missing"), "ChainBroken"),
        (errors.MixedFormats("t/3: two formats"), "GenerationConflict"),
        (errors.DocumentTooNew("the node is too new"), "GenerationConflict"),
    ],
)
def test_stop_name_is_the_name_of_the_named_stop(error: errors.IngestStopped, name: str) -> None:
    assert error.stop_name == name


def test_diagram_in_the_docstring_shows_the_class_hierarchy() -> None:
    lines = re.findall(r"^( {4,})([A-Z][A-Za-z]+)( +\(retriable\))?", errors.__doc__ or "", re.MULTILINE)
    parents: list[str] = ["WaybillError"]
    drawn = {}
    for indent, name, retriable in lines:
        depth = (len(indent) - 4) // 2
        parents[depth:] = [name]
        drawn[name] = (parents[depth - 1] if depth else "Exception", bool(retriable))
    classes = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__
    }
    assert drawn == {name: (cls.__base__.__name__, cls.retriable) for name, cls in classes.items()}


def test_unexpected_exception_names_its_element_class_and_place() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        1 / 0  # noqa: B018
    failure = errors.expected("flights/3", raised.value)
    assert isinstance(failure, errors.UnexpectedFailure)
    assert str(failure).startswith("flights/3: unexpected ZeroDivisionError at test_errors.py:")
    assert "division by zero" in str(failure)


def test_place_of_an_unexpected_exception_is_the_innermost_line_of_waybill() -> None:
    with pytest.raises(KeyError) as raised:
        Document().read(b"{}", "x")
    assert re.fullmatch(r"base/documents\.py:\d+", errors.UnexpectedFailure("x", raised.value).place)


def test_message_of_an_unexpected_exception_is_bounded() -> None:
    assert len(str(errors.UnexpectedFailure("x", ValueError("9" * 1_000_000)))) < 1_000


def test_error_of_waybill_stays_as_it_is() -> None:
    error = errors.ConfigError("wrong")
    assert errors.expected("flights/3", error) is error


def test_message_can_be_encoded_whatever_it_names() -> None:
    assert str(errors.ConfigError("key \uda00 is unknown")).encode() == b"key \\uda00 is unknown"
