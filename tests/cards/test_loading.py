"""Cards from files: what is read, and what the error says about what is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from a2a_grpc import pb
from a2a_grpc.cards.errors import CardError
from a2a_grpc.cards.loading import load_card
from tests.cards.values import a_card, with_bearer

YAML = """
name: Translator
description: >
  Translates
  text.
version: "1.2"
supportedInterfaces:
  - {url: "agents.example.com:443", protocolBinding: GRPC, protocolVersion: "1.0"}
capabilities:
  streaming: true
  extensions:
    - uri: urn:x
      params: {count: 3, nested: [1, {deep: null}]}
securitySchemes:
  bearer:
    httpAuthSecurityScheme: {scheme: Bearer}
securityRequirements:
  - schemes: {bearer: {}}
skills:
  - id: translate
    name: Translate
    description: Translates.
    tags: [translation]
documentationUrl:
"""


def problem(tmp_path: Path, content: str | bytes | Any, name: str = "card.json") -> str:
    """What is said about a file with this content, after the file's name."""
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        file.write_text(text, encoding="utf-8")
    with pytest.raises(CardError) as caught:
        load_card(file)
    said = str(caught.value)
    assert said.startswith(f"{file}: ")
    assert "\n" not in said
    return said.removeprefix(f"{file}: ")


@pytest.mark.parametrize("snake_case", [False, True])
def test_json_is_read_with_either_form_of_the_names(tmp_path: Path, snake_case: bool) -> None:
    card = with_bearer(a_card(icon_url="https://example.com/i.png"))
    file = tmp_path / "card.json"
    file.write_text(json_format.MessageToJson(card, preserving_proto_field_name=snake_case))
    assert load_card(file) == card
    assert load_card(os.fspath(file)) == card


def test_json_may_begin_with_a_byte_order_mark_and_need_not_be_called_json(tmp_path: Path) -> None:
    file = tmp_path / "card"
    file.write_bytes(b"\xef\xbb\xbf" + b'{"name": "\xc3\xa9"}')
    assert load_card(file) == pb.AgentCard(name="é")


@pytest.mark.parametrize("name", ["card.yaml", "card.YML"])
def test_yaml_is_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(YAML)
    card = load_card(file)
    assert card.description == "Translates text.\n"
    assert card.version == "1.2"
    assert card.skills[0].tags == ["translation"]
    assert json_format.MessageToDict(card.capabilities.extensions[0].params) == {
        "count": 3,
        "nested": [1, {"deep": None}],
    }
    assert "bearer" in card.security_requirements[0].schemes
    assert not card.HasField("documentation_url")


def test_nothing_is_filled_in_and_false_stays(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_text('{"capabilities": {"streaming": false}}')
    card = load_card(file)
    assert card == pb.AgentCard(capabilities=pb.AgentCapabilities(streaming=False))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"url": "x"}, "url: is a field of A2A 0.3; in 1.0 it is supportedInterfaces[].url"),
        ({"security": []}, "security: is a field of A2A 0.3; in 1.0 it is securityRequirements"),
        ({"nmae": "x"}, "nmae: is not a field of AgentCard; did you mean name?"),
        ({"Name": "x"}, "Name: is not a field of AgentCard; did you mean name?"),
        (
            {"skills": [{"tag": []}]},
            "skills[0].tag: is not a field of AgentSkill; did you mean tags?",
        ),
        (
            {"skils": []},
            "skils: is not a field of AgentCard; did you mean skills?",
        ),
        (
            {"capabilities": {"push-notifications": True}},
            "capabilities.push-notifications: is not a field of AgentCapabilities; did you mean "
            "pushNotifications?",
        ),
        (
            {"provider": {"zzz": 1}},
            "provider.zzz: is not a field of AgentProvider; it has url, organization",
        ),
        ({"name": 1}, "name: must be a string, and is a number; put it in quotes"),
        ({"name": ["x"]}, "name: must be a string, and is a list"),
        ({"skills": {}}, "skills: must be a list of objects, and is an object"),
        ({"skills": [{"tags": "a"}]}, "skills[0].tags: must be a list of strings, and is a string"),
        (
            {"skills": [{"tags": ["a", None]}]},
            "skills[0].tags[1]: must be a string, and is nothing",
        ),
        ({"skills": [None]}, "skills[0]: must be an object, and is nothing"),
        (
            {"capabilities": {"streaming": "yes"}},
            "capabilities.streaming: must be true or false, and is a string",
        ),
        ({"capabilities": True}, "capabilities: must be an object, and is true or false"),
        (
            {"securitySchemes": [{}]},
            "securitySchemes: must be an object, and is a list",
        ),
        (
            {"securityRequirements": [{"schemes": {"bearer": []}}]},
            'securityRequirements[0].schemes["bearer"]: must be an object, and is a list',
        ),
        (
            {"capabilities": {"extensions": [{"params": [1]}]}},
            "capabilities.extensions[0].params: must be an object, and is a list",
        ),
        (
            {"iconUrl": "a", "icon_url": "b"},
            "icon_url: is the same as iconUrl; remove one of them",
        ),
        ([], "must be an object: the card, and is a list"),
        (
            '{"name": "a", "name": "b"}',
            "name: is given twice; remove one",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(tmp_path: Path, content: Any, said: str) -> None:
    assert problem(tmp_path, content) == said


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_text('{"nmae": "x", "skills": [{"id": 1}]}')
    with pytest.raises(CardError) as caught:
        load_card(file)
    assert [one.field for one in caught.value.problems] == ["nmae", "skills[0].id"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("version: 1.0", "version: must be a string, and is a number; put it in quotes"),
        ("version: 2026-01-01", "version: must be a string, and is a date; put it in quotes"),
        ("name: yes", "name: must be a string, and is true or false; put it in quotes"),
        (
            "capabilities: {extensions: [{uri: x, params: {since: 2026-01-01}}]}",
            'capabilities.extensions[0].params["since"]: is a date, which JSON does not have; put '
            "it in quotes",
        ),
        ("1: x", "1: is not a field of AgentCard"),
        ("", "must be an object: the card, and is nothing"),
        ("name: x\nname: y", "name is given twice; remove one at line 2 column 1"),
        ("? [name]\n: x", "is not YAML: found unhashable key"),
        ("name: [", "is not YAML: "),
        ("name: !!python/object:os.system {}", "is not YAML: could not determine a constructor"),
        ("skills: &a [*a]", "is nested too deeply|skills[0]"),
        ("capabilities: {extensions: [{params: &a {b: *a}}]}", "is nested too deeply for a card"),
    ],
)
def test_what_yaml_reads_differently_is_named(tmp_path: Path, content: str, said: str) -> None:
    found = problem(tmp_path, content, "card.yaml")
    assert any(one in found for one in said.split("|"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("", "is not JSON: Expecting value at line 1 column 1"),
        ("name: x", ".yaml"),
        (b'{"name": "\xff"}', "is not UTF-8; save it as UTF-8"),
        ("[" * 100_000, "is nested too deeply for a card"),
        ('{"name": "\\ud800"}', "is not an agent card"),
        ('{"capabilities": {"extensions": [{"params": {"x": NaN}}]}}', "params"),
    ],
)
def test_what_can_not_be_read_is_one_line(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert said in problem(tmp_path, content)


def test_a_file_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(CardError) as caught:
            load_card(path)
        assert str(path) in str(caught.value)
        assert "can't be read" in str(caught.value)
        assert "name a JSON or YAML file" in str(caught.value)
