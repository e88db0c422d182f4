"""One stream, or one chain, at which an exception is raised hides no other, and the result is no success."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import typer

from waybill.base.errors import StoreUnavailable
from waybill.config.models import Config
from waybill.config.names import TopicPartition
from waybill.interfaces.cli import verify
from waybill.watch.ledger import archived, read
from waybill.watch.verify import VerifyReport

CONFIG = Config.model_validate(
    {
        "version": 1,
        "storage": {"bucket": "archive"},
        "streams": {
            name: {"topics": [name], "table": f"a.{name}", "parser": {"event_time": {"field": "at"}}}
            for name in ("flights", "fares")
        },
    }
)


def test_verify_reports_a_stream_whose_check_raises_and_verifies_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(_: Config, name: str, **__: Any) -> VerifyReport:
        if name == "flights":
            raise IndexError("x")
        return VerifyReport(name, 1)

    monkeypatch.setattr(verify, "_verify", check)
    monkeypatch.setattr(verify, "load_streams", lambda: CONFIG)
    with pytest.raises(typer.Exit) as ended:
        verify.run(None, table=False, keys=False, as_json=False)
    out = capsys.readouterr().out
    assert ended.value.exit_code == 1
    assert "the check of stream flights: unexpected IndexError at" in out
    assert "fares" in out


def test_a_service_that_is_away_ends_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: Any, **__: Any) -> VerifyReport:
        raise StoreUnavailable("S3 does not answer")

    monkeypatch.setattr(verify, "_verify", check)
    with pytest.raises(StoreUnavailable):
        verify._verify_alone(CONFIG, "flights", table=False, keys=False)


def test_a_chain_that_raises_is_an_imbalance_and_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tps = [TopicPartition("flights", number) for number in range(4)]

    def find_chain(_: Any, __: int, tp: TopicPartition, *___: Any) -> Any:
        if tp.partition == 1:
            raise OverflowError("x")
        if tp.partition == 2:
            raise ValueError("y")
        return archived.Chain.__new__(archived.Chain)

    monkeypatch.setattr(archived, "find_chain", find_chain)
    monkeypatch.setattr(read, "_list_chains", lambda *_: tps)
    monkeypatch.setattr(archived.Chain, "tp", property(lambda _: tps[0]), raising=False)
    further: list[Any] = []
    found = read._find_chains(SimpleNamespace(), CONFIG.stream("flights"), {}, [], further)  # type: ignore[arg-type]
    assert list(found) == [tps[0]]
    assert [each.tp for each in further] == tps[1:3]
    assert "unexpected OverflowError" in str(further[0])
