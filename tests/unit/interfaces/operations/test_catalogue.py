"""Each surface offers an operation with the same parameters and checks: they are derived from one declaration."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from jsonschema import ValidationError
from jsonschema.validators import validate

from waybill.base.errors import ConfigError
from waybill.interfaces.airflow.forms import form_params
from waybill.interfaces.cli.app import app
from waybill.interfaces.operations.catalogue import FORMS, OPERATIONS, PAGE_OPERATIONS, REJECT, RETRY, dags_of
from waybill.interfaces.operations.declaration import DagForm, Kind, Operation, OperationName, Role
from waybill.interfaces.web.perform import PERFORM
from waybill.tables.audit.decisions import DecisionKind

CONFIG: Any = SimpleNamespace(streams={"flights": None, "trains": None})
FORM_OF_DAG = {form.dag: form for form in FORMS}
IN_DAGS = [each for each in OPERATIONS.values() if each.runs is not None]


def command_of(operation: Operation) -> Any:
    command: Any = typer.main.get_command(app)
    for word in operation.command:
        command = command.commands[word]
    return command


def form_of(operation: Operation) -> DagForm:
    assert operation.runs is not None
    return FORM_OF_DAG[operation.runs.dag]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda each: each.name)
def test_the_command_has_the_declared_options_with_their_help(operation: Operation) -> None:
    options = {option: each for each in command_of(operation).params for option in getattr(each, "opts", ())}
    declared = [*operation.parameters, *([operation.reason] if operation.reason else [])]
    for parameter in (each for each in declared if each.option):
        assert parameter.option in options
    arguments = [each for each in command_of(operation).params if each.param_type_name == "argument"]
    assert len(arguments) == sum(not each.option for each in operation.parameters)


@pytest.mark.parametrize("operation", IN_DAGS, ids=lambda each: each.name)
def test_the_form_of_the_dag_has_the_parameters_of_its_operations(operation: Operation) -> None:
    names = {each.name for each in form_of(operation).parameters}
    only_on_the_command_line = {"replication_factor"}
    assert {each.name for each in operation.parameters} - only_on_the_command_line <= names
    assert operation.reason is None or operation.reason.name in names
    if operation.runs is not None and operation.runs.choice is not None:
        name, value = operation.runs.choice
        [choice] = [each for each in form_of(operation).parameters if each.name == name]
        assert value in choice.choices


@pytest.mark.parametrize("name", PAGE_OPERATIONS)
def test_what_a_page_sends_to_a_dag_is_accepted_by_its_form(name: OperationName) -> None:
    operation = PAGE_OPERATIONS[name]
    if operation.runs is None:
        return
    given = {"stream": "flights", "plan": "p", "backfill": "20261122_7f3a", "kind": "not_json", "topic": "flights"}
    operation.check(given)
    params = form_params(form_of(operation), CONFIG)
    sent = operation.form_of_run(given, "why")
    for field, value in sent.items():
        validate(value, params[field].schema)


def test_a_value_that_the_form_refuses_is_refused_on_the_page_too() -> None:
    for operation in PAGE_OPERATIONS.values():
        for parameter in operation.parameters:
            if parameter.pattern and operation.runs is not None:
                with pytest.raises(ConfigError, match="is no backfill"):
                    operation.check({"stream": "flights", parameter.field: "x"})
                with pytest.raises(ValidationError):
                    validate("x", form_params(form_of(operation), CONFIG)[parameter.name].schema)


def test_a_text_that_is_no_number_is_refused() -> None:
    [partition] = [
        each for each in PAGE_OPERATIONS[OperationName.ACCEPT_GAP].parameters if each.field and each.kind is Kind.NUMBER
    ]
    for text in ("-1", "x", "1.5", "²", str(2**31)):
        with pytest.raises(ConfigError, match="whole number"):
            partition.check(text)
    partition.check("3")


def test_every_page_operation_is_performed_and_no_other() -> None:
    assert set(PERFORM) == set(PAGE_OPERATIONS)


def test_the_roles_of_the_pages_follow_from_the_dags() -> None:
    assert set(dags_of(Role.OPERATOR)) == {"quarantine_retry", "quality_decision", "backfill"}
    assert dags_of(Role.ADMIN) == ("backfill_undo",)


def test_reject_and_release_have_one_vocabulary() -> None:
    assert {kind.verb: str(kind) for kind in DecisionKind} == {"release": "released", "reject": "rejected"}
    assert DecisionKind.of(OperationName.REJECT) is DecisionKind.REJECTED
    assert DecisionKind("rejected") is DecisionKind.REJECTED


def test_the_command_that_a_page_shows_can_be_typed() -> None:
    fields = {"stream": "flights", "plan": "p 1"}
    assert REJECT.command_line(REJECT.values_of(fields), "why", "ada") == (
        "waybill quality reject flights --plan 'p 1' --reason why --by ada"
    )
    retry = RETRY.command_line(RETRY.values_of({"stream": "flights", "kind": "not_json", "topic": ""}))
    assert retry == "waybill quarantine retry flights --reason not_json"


def test_the_declarations_import_nothing_but_the_standard_library() -> None:
    code = "import sys, waybill.interfaces.operations.catalogue; print(*{n.partition('.')[0] for n in sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert not set(re.split(r"\s+", ran.stdout)) & {"airflow", "pydantic", "orjson", "typer", "boto3", "kazoo", "yaml"}
