"""The canonical form of a card: section 8.4.1 of the specification, and RFC 8785."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format

from a2a_grpc import pb
from a2a_grpc.cards.canonical import canonical_card, pruned_card
from a2a_grpc.cards.errors import CardSignatureError
from tests.cards.values import a_card, with_bearer


def parsed(text: str) -> pb.AgentCard:
    return json_format.Parse(text, pb.AgentCard())


def test_known_answer_of_a_whole_card() -> None:
    card = with_bearer(a_card(documentation_url="", icon_url="https://example.com/\u00e9.png"))
    card.signatures.add(protected="p", signature="s")
    assert canonical_card(card).decode() == (
        '{"capabilities":{"streaming":true},"defaultInputModes":["text/plain"],'
        '"defaultOutputModes":["text/plain"],"description":"Translates.","documentationUrl":"",'
        '"iconUrl":"https://example.com/\u00e9.png","name":"Translator",'
        '"securityRequirements":[{"schemes":{"bearer":{}}}],'
        '"securitySchemes":{"bearer":{"httpAuthSecurityScheme":{"scheme":"Bearer"}}},'
        '"skills":[{"description":"Translates text.","id":"translate","name":"Translate",'
        '"tags":["translation"]}],"supportedInterfaces":[{"protocolBinding":"GRPC",'
        '"protocolVersion":"1.0","url":"agents.example.com:443"}],"version":"1.2.0"}'
    )


def test_the_example_of_the_specification() -> None:
    """8.4.1, whose fragment leaves out the REQUIRED fields that it does not show."""
    card = parsed(
        '{"name": "Example Agent", "description": "", "capabilities": {"streaming": false, '
        '"pushNotifications": false, "extensions": []}, "skills": []}'
    )
    found = json.loads(canonical_card(card))
    shown = ("capabilities", "description", "name", "skills")
    assert json.dumps({name: found[name] for name in shown}, separators=(",", ":")) == (
        '{"capabilities":{"pushNotifications":false,"streaming":false},"description":"",'
        '"name":"Example Agent","skills":[]}'
    )
    assert set(found) - set(shown) == {
        "defaultInputModes",
        "defaultOutputModes",
        "supportedInterfaces",
        "version",
    }


def test_optional_fields_are_there_exactly_if_they_are_set() -> None:
    assert b"streaming" not in canonical_card(a_card(capabilities=pb.AgentCapabilities()))
    explicit = a_card(capabilities=pb.AgentCapabilities(streaming=False))
    assert b'"capabilities":{"streaming":false}' in canonical_card(explicit)
    assert b"iconUrl" not in canonical_card(a_card())
    assert b'"iconUrl":""' in canonical_card(a_card(icon_url=""))


def test_other_fields_with_their_default_value_are_left_out() -> None:
    capabilities = pb.AgentCapabilities(extensions=[pb.AgentExtension(uri="urn:a", required=False)])
    form = canonical_card(a_card(capabilities=capabilities))
    assert b'"extensions":[{"uri":"urn:a"}]' in form
    assert b"tenant" not in form


def test_a_message_that_is_set_and_empty_is_there() -> None:
    card = a_card()
    card.security_schemes["tls"].mtls_security_scheme.SetInParent()
    assert b'"securitySchemes":{"tls":{"mtlsSecurityScheme":{}}}' in canonical_card(card)


@pytest.mark.parametrize(
    ("number", "written"),
    [
        # RFC 8785, appendix B, as far as a Struct can hold it.
        (0.0, "0"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (1e21, "1e+21"),
        (1e-7, "1e-7"),
        (0.000001, "0.000001"),
        (333333333.3333332, "333333333.3333332"),
        (4.5, "4.5"),
        (300.0, "300"),
    ],
)
def test_numbers_are_written_as_rfc_8785_has_them(number: float, written: str) -> None:
    card = a_card()
    card.capabilities.extensions.add(uri="urn:a").params["n"] = number
    assert f'"params":{{"n":{written}}}'.encode() in canonical_card(card)


def test_names_are_ordered_by_utf_16_and_strings_escaped_as_little_as_possible() -> None:
    card = a_card()
    params = card.capabilities.extensions.add(uri="urn:a").params
    for name in ("\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"):
        params[name] = "\u20ac$\u000f\nA'B\"\\/"
    form = canonical_card(card).decode()
    names = ['"\\r"', '"1"', '"\u0080"', '"\u00f6"', '"\u20ac"', '"\U0001f600"', '"\ufb33"']
    places = [form.index(f"{name}:") for name in names]
    assert places == sorted(places)
    assert '"\u20ac$\\u000f\\nA\'B\\"\\\\/"' in form


def test_all_of_a_struct_is_covered() -> None:
    card = a_card()
    params = card.capabilities.extensions.add(uri="urn:a").params
    params.update({"list": [1, None, {}, []], "text": "", "yes": True, "none": None})
    assert b'"params":{"list":[1,null,{},[]],"none":null,"text":"","yes":true}' in canonical_card(
        card
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused(number: float) -> None:
    card = a_card()
    card.capabilities.extensions.add(uri="urn:a").params["n"] = number
    with pytest.raises(CardSignatureError, match="no canonical form"):
        canonical_card(card)


def test_the_form_survives_every_way_a_card_may_take() -> None:
    card = with_bearer(a_card(documentation_url=""))
    card.capabilities.extensions.add(uri="urn:a").params.update({"a": 1.5, "b": {}})
    over_grpc = pb.AgentCard.FromString(card.SerializeToString())
    over_http = json_format.Parse(json_format.MessageToJson(card), pb.AgentCard())
    assert canonical_card(over_grpc) == canonical_card(over_http) == canonical_card(card)


def test_the_pruned_form_is_the_same_unless_something_empty_is_set() -> None:
    card = a_card(capabilities=pb.AgentCapabilities(streaming=False))
    assert pruned_card(card) == canonical_card(card)
    assert pruned_card(with_bearer(card)) != canonical_card(with_bearer(card))
    assert b"securityRequirements" not in pruned_card(with_bearer(card))
    assert pruned_card(pb.AgentCard()) == b"{}"
