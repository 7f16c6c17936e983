"""Settings from environment variables: every setting has one, and a mistake is told with the variable's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.broker import BrokerSettings
from ottla.config.environment import PREFIX, Placed, from_environment, layered
from ottla.config.properties import load
from ottla.errors import ConfigurationError


def refused(environment: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigurationError) as error:
        BrokerSettings.from_properties(layered(BrokerSettings, [from_environment(BrokerSettings, environment)]))
    return str(error.value).splitlines()


@pytest.mark.parametrize("name", sorted(BrokerSettings.definitions_by_any_name()))
def test_every_setting_has_one_variable(name: str) -> None:
    """Upper case, `_` for `.`: it must be possible to go back, or a variable would set something else than it says."""
    variable = PREFIX + name.replace(".", "_").upper()
    assert dict(from_environment(BrokerSettings, {variable: "value"})) == {name: "value"}


@given(
    listener=st.from_regex(r"[A-Z][A-Z0-9]{0,5}(_[A-Z0-9]{1,5}){0,3}", fullmatch=True),
    plain=st.sampled_from(sorted(name for name in BrokerSettings.definitions_by_any_name() if name.startswith("ssl."))),
)
def test_what_is_for_one_listener_names_it_whatever_underscores_it_has(listener: str, plain: str) -> None:
    variable = f"{PREFIX}LISTENER_NAME_{listener}_{plain.replace('.', '_').upper()}"
    ((name, _),) = from_environment(BrokerSettings, {variable: "value"}).items()
    # Should a listener be called after the beginning of a setting, the shorter name of a listener is meant.
    found, _, rest = name.removeprefix("listener.name.").partition(".ssl.")
    assert f"{found}_ssl_{rest.replace('.', '_')}".upper() == f"{listener}_{plain.replace('.', '_')}".upper()
    assert f"ssl.{rest}" in BrokerSettings.definitions_by_any_name()


def test_other_variables_are_nobodys_business_here() -> None:
    assert not from_environment(BrokerSettings, {"PATH": "/bin", "OTTLA_LOG_FORMAT": "json", "OTTLA_SETTING": "1"})


@pytest.mark.parametrize(
    ("variable", "complaint"),
    [
        ("OTTLA_SETTING_LOG_SEGMENT_BYTE", "there is no such setting; did you mean 'OTTLA_SETTING_LOG_SEGMENT_BYTES'?"),
        ("OTTLA_SETTING_broker_id", "there is no such setting; did you mean 'OTTLA_SETTING_BROKER_ID'?"),
        (
            "OTTLA_SETTING_LISTENER_NAME_OUT_SIDE_SSL_KEYSTORE_LOCATOIN",
            "there is no such setting; did you mean 'OTTLA_SETTING_LISTENER_NAME_OUT_SIDE_SSL_KEYSTORE_LOCATION'?",
        ),
        ("OTTLA_SETTING_PROCESS_ROLES", "process.roles cannot be set: it belongs to KRaft, which Ottla does not have; remove it"),
        ("OTTLA_SETTING_LISTENER_NAME_EXTERNAL_NUM_PARTITIONS", "there is no such setting"),
        ("OTTLA_SETTING_", "there is no such setting"),
    ],
)
def test_a_variable_for_no_setting_is_refused_with_the_nearest_right_one(variable: str, complaint: str) -> None:
    (line,) = refused({variable: "1", "OTTLA_SETTING_BROKER_ID": "1"})
    assert line.startswith(f"{variable}: {complaint}")


def test_a_bad_value_is_told_with_its_variable_and_a_secret_is_not_told() -> None:
    assert refused({"OTTLA_SETTING_NUM_PARTITIONS": "many", "OTTLA_SETTING_BROKER_ID": "one"}) == [
        "OTTLA_SETTING_BROKER_ID: broker.id = 'one': not a whole number",
        "OTTLA_SETTING_NUM_PARTITIONS: num.partitions = 'many': not a whole number",
    ]
    environment = {"OTTLA_SETTING_LISTENERS": "SSL://:9093", "OTTLA_SETTING_SSL_KEY_PASSWORD": "secret"}
    assert "secret" not in "".join(refused(environment))


def test_the_command_line_is_over_the_environment_and_that_over_the_file_also_under_an_alias(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    of_listener = "listener.name.PLAINTEXT.ssl.client.auth=none"
    path.write_text(f"broker.id=1\nnum.partitions=1\nnum.network.threads=3\nmax.connections=10\n{of_listener}\n")
    variables = {"OTTLA_SETTING_BROKER_ID": "2", "OTTLA_SETTING_NUM_PARTITIONS": "2", "OTTLA_SETTING_CONNECTIONS_MAX": "20"}
    variables["OTTLA_SETTING_LISTENER_NAME_PLAINTEXT_SSL_CLIENT_AUTH"] = "required"
    given_last = Placed({"num.partitions": "3"}, {"num.partitions": "--override"}, "--override")
    settings = BrokerSettings.from_properties(
        layered(BrokerSettings, [load(path), from_environment(BrokerSettings, variables), given_last])
    )
    assert (settings.broker_id, settings.num_partitions, settings.max_connections) == (2, 3, 20)
    assert settings.given == {"broker.id", "num.partitions", "num.network.threads", "max.connections"}
    assert settings.listener_overrides == (("plaintext", "ssl.client.auth", "required"),)


def test_each_mistake_is_told_with_its_own_place(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("broker.id=1\nlog.retention.hour=5\n")
    layers = [
        load(path),
        from_environment(BrokerSettings, {"OTTLA_SETTING_NUM_PARTITIONS": "0"}),
        Placed({"log.dirs": ","}, {"log.dirs": "--override"}, "--override"),
    ]
    with pytest.raises(ConfigurationError) as error:
        BrokerSettings.from_properties(layered(BrokerSettings, layers))
    assert [line.partition(": ")[0] for line in str(error.value).splitlines()] == [
        f"{path}:2",
        "OTTLA_SETTING_NUM_PARTITIONS",
        "--override",
    ]
