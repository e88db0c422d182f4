"""The reference and the JSON schema agree with the models, and the example is valid."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from waybill.config.models import load_config, reference
from waybill.config.models.load import DEFAULT_PATH

DOCUMENT = Path(__file__).parents[4] / "docs" / "config-reference.md"


def test_the_document_is_current() -> None:
    """Update it with: waybill config reference > docs/config-reference.md"""
    assert DOCUMENT.read_text(encoding="utf-8") == reference.markdown()


def test_every_section_and_key_is_described() -> None:
    text = reference.markdown()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 25
    assert all(row.rstrip(" |").endswith(".") for row in rows), "a key without a description"
    parser = "`streams.<name>.parser` with `name: raw`"
    for section in ("`storage`", "`streams.<name>.upload`", parser, "`streams.<name>.parser.event_time`"):
        assert text.count(f"## {section}\n") == 1


def test_defaults_and_limits_have_the_form_of_the_yaml() -> None:
    text = reference.markdown()
    assert "| `max_bytes` | size | `128MiB` | 1KiB to 5GiB, as 64MiB or 1GB |" in text
    assert "| `budget` | duration | `45s` | 1s to 1h, as a whole number of s, m, h or d |" in text
    assert "| `message_id` | field path | none |" in text
    assert "| `bucket` | text | *required* |" in text


def test_the_example_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(reference.EXAMPLE)
    assert set(load_config(file).streams) == {"orders", "clicks"}


@pytest.mark.parametrize("text", [reference.EXAMPLE, DEFAULT_PATH.read_text(encoding="utf-8")])
def test_json_schema_accepts_valid_configs(text: str) -> None:
    schema = json.loads(reference.json_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    # As an editor reads it: YAML 1.2, where a time is text.
    document = yaml.load(text, Loader=yaml.BaseLoader)
    document["version"] = 1
    for stream in document["streams"].values():
        stream["generation"] = int(stream.get("generation", 1))
        stream.get("ingest", {}).update({"lanes": 1})
    jsonschema.validate(document, schema)


@pytest.mark.parametrize(
    "wrong",
    [{"version": 2}, {"version": 1, "storage": {"bucket": "A"}}, {"version": 1, "storage": {"bucket": "abc", "x": 1}}],
)
def test_json_schema_refuses_invalid_configs(wrong: dict[str, object]) -> None:
    schema = json.loads(reference.json_schema())
    right = {"version": 1, "storage": {"bucket": "abc"}, "streams": {}}
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors({**right, **wrong}))
    assert any(error.absolute_path or error.validator == "const" for error in errors)


def test_json_schema_has_defaults_in_the_form_of_the_yaml() -> None:
    schema = json.loads(reference.json_schema())
    assert schema["$defs"]["ZooKeeper"]["properties"]["session_timeout"]["default"] == "10s"
