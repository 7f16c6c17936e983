"""Tests against a real broker, which the fixtures of `pip install ottla` bring."""

from click_counter import count, publish

from ottla.testing import EmbeddedCluster


def test_clicks_are_counted_per_page(ottla_bootstrap_servers, ottla_topic):
    publish(ottla_bootstrap_servers, ottla_topic, ["/home", "/about", "/home"])
    assert count(ottla_bootstrap_servers, ottla_topic) == {"/home": 2, "/about": 1}


def test_each_test_has_a_topic_of_its_own(ottla_bootstrap_servers, ottla_topic):
    assert count(ottla_bootstrap_servers, ottla_topic) == {}


def test_clicks_outlive_the_broker(tmp_path):
    with EmbeddedCluster(topics={"clicks": 1}, data_directory=tmp_path) as cluster:
        publish(cluster.bootstrap_servers, "clicks", ["/home"])
        cluster.restart()
        assert count(cluster.bootstrap_servers, "clicks") == {"/home": 1}
