"""How one setting is read from text, bounded and shown. Parsing is that of Kafka's `ConfigDef.parseType`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.broker import BrokerSettings
from ottla.config.settings import Kind, Password, SettingDefinition
from ottla.config.topic import TopicSettings
from ottla.errors import ConfigurationError


def definition(kind: Kind, **others: Any) -> SettingDefinition:
    return SettingDefinition(name="a.setting", kind=kind, default=None, doc="", **others)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", " TRUE ", True),
        ("boolean", "false", False),
        ("int", " +12 ", 12),
        ("int", "-2147483648", -(2**31)),
        ("long", "9223372036854775807", 2**63 - 1),
        ("double", "0.5", 0.5),
        ("string", " text ", "text"),
        ("list", "", ()),
        ("list", "a , b,c", ("a", "b", "c")),
        ("password", "secret", Password("secret")),
    ],
)
def test_text_is_read_by_its_kind(kind: Kind, text: str, value: object) -> None:
    assert definition(kind).parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        ("boolean", "yes", "not true or false"),
        ("int", "1_000", "not a whole number"),
        ("int", "1.0", "not a whole number"),
        ("int", "", "not a whole number"),
        ("int", "٣", "not a whole number"),
        ("int", "2147483648", "does not fit in 32 bits"),
        ("long", "9223372036854775808", "does not fit in 64 bits"),
        ("double", "half", "not a number"),
        ("double", "NaN", "not a number"),
        ("double", "1e400", "not a number"),
        ("double", "1_0", "not a number"),
    ],
)
def test_text_that_is_no_value_is_refused_and_shown(kind: Kind, text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        definition(kind).parse(text)
    assert str(refused.value) == f"a.setting = {text!r}: {complaint}"


def test_bounds_are_part_of_what_is_allowed() -> None:
    bounded = definition("int", at_least=1, at_most=3)
    assert [bounded.parse(text) for text in ("1", "3")] == [1, 3]
    with pytest.raises(ConfigurationError, match=r"must be at least 1"):
        bounded.parse("0")
    with pytest.raises(ConfigurationError, match=r"must be at most 3"):
        bounded.parse("4")


def test_a_word_that_is_no_choice_gets_the_nearest_choice() -> None:
    with pytest.raises(ConfigurationError, match=r"must be one of compact, delete; did you mean 'compact'\?"):
        definition("list", choices=("compact", "delete")).parse("delete,compacted")


def test_a_password_is_in_no_text_made_of_it() -> None:
    """Kafka's rule: DescribeConfigs answers null for a sensitive value, and logs show [hidden]."""
    settings = BrokerSettings.from_properties({"ssl.key.password": "open sesame"})
    assert settings.ssl_key_password is not None
    assert settings.ssl_key_password.value == "open sesame"
    assert settings.text_of("ssl.key.password") is None
    assert "sesame" not in f"{settings!r} {settings.ssl_key_password} {settings.definitions()!r}"


@given(st.sampled_from([*BrokerSettings.definitions().values(), *TopicSettings.definitions().values()]))
def test_a_default_written_as_text_is_read_as_itself(each: SettingDefinition) -> None:
    """Property over all settings: their defaults are within their own bounds and survive the trip through text."""
    text = each.text(each.default)
    assert text is None or each.parse(text) == each.default


def test_every_setting_is_explained_in_a_sentence() -> None:
    for definition in [*BrokerSettings.definitions().values(), *TopicSettings.definitions().values()]:
        assert definition.doc[:1].isupper(), definition.name
        assert definition.doc.endswith((".", ";")), definition.name
        assert not definition.without_effect or definition.without_effect.endswith("."), definition.name


def test_each_name_in_python_is_kafkas_with_underscores() -> None:
    for settings in (BrokerSettings, TopicSettings):
        for name, each in settings.definitions().items():
            assert name == each.name
            assert each.attribute in settings.__dataclass_fields__
