"""`waybill ledger`: the printed tables, and the check of a signed file."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import typer
from archived_stream import Ran, waybill
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from waybill.archive.chain.gaps import Gap, GapKind
from waybill.config.names import TopicPartition
from waybill.interfaces.cli import ledger as command
from waybill.interfaces.cli.commands.options import LedgerBy
from waybill.watch.ledger import Ledger, Line, LogTerms, MessageTerms, RowTerms
from waybill.watch.ledger.signature import sign

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


def printed(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> list[str]:
    command.print_ledger(ledger)
    return capsys.readouterr().out.splitlines()


def test_each_equation_is_a_table_with_a_line_for_each_topic_partition_and_the_sums(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [
        Line(
            TP0,
            LogTerms(0, 1500, 1510, 0, 1490, control=6, aborted=4),
            MessageTerms(1200, 40, 0, 250, 1250),
            RowTerms(1000, 100, 100),
        ),
        Line(TP1, LogTerms(0, 20, 20, 0, 20), MessageTerms(20, 0, 0, 0, 20), RowTerms(20, 0, 0)),
    ]
    assert printed(Ledger("flights", 1, 0, lines), capsys) == [
        "topic-partition  offsets  messages  control  aborted  compacted  not archived",
        "flights/0          1,500     1,490        6        4          0            10",
        "flights/1             20        20        0        0          0             0",
        "total              1,520     1,510        6        4          0            10",
        "",
        "topic-partition  messages   rows  quarantine  held  waiting",
        "flights/0           1,490  1,200          40     0      250",
        "flights/1              20     20           0     0        0",
        "total               1,510  1,220          40     0      250",
        "",
        "topic-partition   rows  unique  duplicates  unswept  left out",
        "flights/0        1,200   1,000         100      100         0",
        "flights/1           20      20           0        0         0",
        "total            1,220   1,020         100      100         0",
        "",
        "balanced",
    ]


def test_gaps_notes_and_imbalances_follow_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    gap = Gap(TP0, 1, 5, 10, GapKind.RETENTION, "disk full", "ann", 0)
    line = Line(TP0, LogTerms(0, 20, None, 5, 15), MessageTerms(14, 0, 0, 0, 20), gaps=[gap])
    found = printed(Ledger("flights", 1, 0, [line], ["Kafka was not asked"]), capsys)
    assert found[0].split() == [
        *("topic-partition", "offsets", "messages", "control", "aborted", "compacted", "gaps", "not", "archived"),
    ]
    assert found[1].split() == ["flights/0", "20", "15", "0", "0", "0", "5", "-"]
    assert found[6:] == [
        "accepted: flights/0 offsets 5–9 (RetentionGap), by ann: disk full",
        "note: Kafka was not asked",
        "does not balance: flights/0 offsets 0–19: 15 messages were archived that the tables should have, and the "
        "tables have 14: 1 missing",
        "",
        "NOT BALANCED: 1 imbalance. `waybill verify flights` reads the messages and lists the offsets",
    ]


def test_what_is_not_known_is_neither_a_figure_nor_a_sum(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [Line(TP0, LogTerms(0, 20, 20, 0, None)), Line(TP1, LogTerms(0, 5, 5, 0, 5))]
    found = printed(Ledger("flights", 1, 0, lines), capsys)
    assert [line.split()[1:3] for line in found[1:4]] == [["20", "-"], ["5", "5"], ["25", "-"]]
    assert [line.split()[3] for line in found[1:4]] == ["-", "0", "-"]
    assert found[-1] == "balanced, as far as it is known: see the notes"


def check(file: Path, *options: str) -> Ran:
    return waybill("ledger", "check", str(file), *options)


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(sign({"v": 1, "messages": 3}, KEY)))
    return file


def public(key: Ed25519PrivateKey) -> str:
    return b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def test_a_signed_file_is_checked_with_a_key_or_a_file_of_it(signed: Path, tmp_path: Path) -> None:
    pem = tmp_path / "public.pem"
    pem.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for key in (public(KEY), str(pem)):
        ran = check(signed, "--public-key", key)
        assert (ran.code, ran.out) == (0, f"{signed}: valid: signed with this key, and not changed since\n")
    ran = check(signed)
    words = f"not changed since it was signed with the key {public(KEY)}; give --public-key to compare that key"
    assert (ran.code, ran.out) == (0, f"{signed}: {words}\n")


def test_each_fault_has_its_word_and_exit_code_1(signed: Path, tmp_path: Path) -> None:
    other = public(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    ran = check(signed, "--public-key", other)
    assert (ran.code, ran.out) == (
        1,
        f"{signed}: WRONG KEY: signed with the key {public(KEY)}, which is not the given one\n",
    )
    changed, unsigned, broken = (tmp_path / name for name in ("changed.json", "unsigned.json", "broken.json"))
    changed.write_text(signed.read_text().replace('"messages": 3', '"messages": 4'))
    unsigned.write_text('{"v": 1}')
    broken.write_text("{")
    for file, words in (
        (changed, "CHANGED: the content is not what was signed"),
        (unsigned, "UNSIGNED: the file has no signature"),
        (broken, "UNSIGNED: the file has no signature"),
    ):
        ran = check(file, "--public-key", public(KEY))
        assert (ran.code, ran.out) == (1, f"{file}: {words}\n")


def test_a_missing_file_and_a_bad_key_are_refused_by_name(signed: Path, tmp_path: Path) -> None:
    ran = check(tmp_path / "none.json")
    assert ran.code == 1
    assert f"{tmp_path}/none.json cannot be read: No such file or directory" in ran.err
    ran = check(signed, "--public-key", "AAAA")
    assert ran.code == 1
    assert "the public key is no Ed25519 public key" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("flights", "ledger.json"), "a file follows `check`, not 'flights'"),
        (("flights", "--public-key", "AAAA"), "--public-key belongs to"),
    ],
)
def test_misplaced_arguments_are_refused(arguments: tuple[str, ...], words: str) -> None:
    ran = waybill("ledger", *arguments)
    assert ran.code == 2
    assert words in ran.err.replace("\n", " ")


def test_a_ledger_that_does_not_balance_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command itself, without services."""
    ledger = Ledger("flights", 1, 0, [Line(TP0, LogTerms(0, 5, None, 0, 5), MessageTerms(4, 0, 0, 0, 5))])

    def give(*_: Any, **__: Any) -> Ledger:
        return ledger

    monkeypatch.setattr(command, "_read", give)
    with pytest.raises(typer.Exit) as ended:
        command.run(
            "flights",
            by=LedgerBy.TOPIC_PARTITION,
            days=command.Range(),
            kafka=False,
            read_objects=False,
            record=False,
            as_json=True,
            sign_with=None,
        )
    assert ended.value.exit_code == 1


def test_the_balance_of_some_days_is_not_recorded() -> None:
    for options in (("--by", "day"), ("--since", "2026-01-31"), ("--read-objects",)):
        ran = waybill("ledger", "flights", "--record", *options)
        assert ran.code == 1
        assert "--record stores the balance of the whole stream" in ran.err
