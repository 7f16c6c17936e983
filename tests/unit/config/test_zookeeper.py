"""`zookeeper.connect` and what goes with it."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerSettings
from ottla.config.connect_string import ConnectString
from ottla.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("localhost", (("localhost", 2181),), ""),
        ("a:1,b:2/kafka/prod", (("a", 1), ("b", 2)), "/kafka/prod"),
        (" a:1, b:2/ ", (("a", 1), ("b", 2)), ""),
        ("[::1]:2182,10.0.0.1/x", (("::1", 2182), ("10.0.0.1", 2181)), "/x"),
    ],
)
def test_a_connect_string_is_servers_and_a_path(text: str, servers: tuple[tuple[str, int], ...], chroot: str) -> None:
    """As ZooKeeper's ConnectStringParser: the chroot follows the last server and holds for all."""
    parsed = ConnectString.parse(text)
    assert (parsed.servers, parsed.chroot) == (servers, chroot)
    assert ConnectString.parse(str(parsed)) == parsed


@pytest.mark.parametrize("text", ["", ",", "a:0", "a:b", "a,,b", "a:1/b//c", "a:1/../b", "a:1/b\x01", "/only", "a..b:1", f"a:{'9' * 5000}"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not host:port|is no path"):
        ConnectString.parse(text)


def test_a_listener_of_the_twin_has_a_port() -> None:
    """Of more than 4,300 digits Python makes no number, and raises what is no ConfigurationError."""
    for wrong in ("a", "a:65536", "a..b:1", f"a:{'9' * 5000}"):
        with pytest.raises(ConfigurationError, match="is not host:port"):
            BrokerSettings.from_properties({"coordination.listener": wrong})
    assert BrokerSettings.from_properties({"coordination.listener": "a:0"}).coordination_listener == "a:0"


def test_acls_need_somebody_to_be_and_a_name_a_password() -> None:
    """Kafka refuses zookeeper.set.acl without a JAAS login as well."""
    digest = {"zookeeper.digest.username": "ottla", "zookeeper.digest.password": "secret"}
    with pytest.raises(ConfigurationError, match="would not know who we are"):
        BrokerSettings.from_properties({"zookeeper.connect": "a", "zookeeper.set.acl": "true"})
    with pytest.raises(ConfigurationError, match=r"both zookeeper\.digest\.username and"):
        BrokerSettings.from_properties({"zookeeper.connect": "a", "zookeeper.digest.username": "ottla"})
    settings = BrokerSettings.from_properties({"zookeeper.connect": "a", "zookeeper.set.acl": "true", **digest})
    assert settings.text_of("zookeeper.digest.password") is None
    assert "secret" not in repr(settings.zookeeper_digest_password)
