"""Values that a file of settings has from elsewhere. Source: KIP-297 and KIP-887, and the classes of Kafka's config.provider package."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.config.providers import load
from ottla.errors import ConfigurationError

CLASSES = {"file": "FileConfigProvider", "dir": "DirectoryConfigProvider", "env": "EnvVarConfigProvider"}


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a secret in each of the forms."""
    directory = tmp_path / "secrets"
    directory.mkdir()
    (directory / "broker.properties").write_text("digest=from:a}file\nother=1\n")
    (directory / "password").write_text("from a directory")
    monkeypatch.setenv("OTTLA_TEST_SECRET", "from the environment")
    return directory


def written(secrets: Path, *lines: str, providers: str = "file,dir,env") -> Path:
    path = secrets.parent / "server.properties"
    names = [word for word in providers.split(",") if word]
    classes = [f"config.providers.{name}.class=org.apache.kafka.common.config.provider.{CLASSES[name]}" for name in names]
    path.write_text("\n".join([*lines, *([f"config.providers={providers}"] if names else []), *classes]))
    return path


def test_values_are_taken_from_files_directories_and_the_environment(secrets: Path) -> None:
    found = load(
        written(
            secrets,
            f"zookeeper.digest.password=${{file:{secrets}/broker.properties:digest}}",
            f"ssl.key.password=a-${{dir:{secrets}:password}}-b",
            "broker.rack=${env:OTTLA_TEST_SECRET}",
            "broker.id=1",
        )
    )
    assert dict(found) == {
        "zookeeper.digest.password": "from:a}file",
        "ssl.key.password": "a-from a directory-b",
        "broker.rack": "from the environment",
        "broker.id": "1",
    }
    assert found.place_of("broker.rack").endswith("server.properties:3")


def test_without_providers_and_of_others_the_text_stays_as_it_is(secrets: Path) -> None:
    """As in Kafka; and what was looked up is not looked at once more."""
    assert dict(load(written(secrets, "a=${file:x:y}", providers=""))) == {"a": "${file:x:y}"}
    (secrets / "password").write_text("${env:OTTLA_TEST_SECRET}")
    found = load(written(secrets, "a=${vault:x:y} ${env}", f"b=${{dir:{secrets}:password}}"))
    assert dict(found) == {"a": "${vault:x:y} ${env}", "b": "${env:OTTLA_TEST_SECRET}"}


WRONG = {
    "a file that is not there": ("${file:/no/such:key}", "/no/such: No such file or directory"),
    "a key that is not there": ("${file:SECRETS/broker.properties:wrong}", "SECRETS/broker.properties has no wrong"),
    "a file outside of its directory": ("${dir:SECRETS:../server.properties}", "'../server.properties' is not the name of a file"),
    "a file of no directory": ("${dir:pyproject.toml}", "pyproject.toml has no path before it"),
    "a key of no file": ("${file::key}", "key has no path before it"),
    "a variable that is not there": ("${env:OTTLA_TEST_NOTHING}", "the environment has no OTTLA_TEST_NOTHING"),
    "a variable with a path": ("${env:path:OTTLA_TEST_SECRET}", "has no path"),
}


@pytest.mark.parametrize("which", WRONG)
def test_what_cannot_be_looked_up_is_said_with_its_line_and_is_not_the_password(secrets: Path, which: str) -> None:
    text, says = (part.replace("SECRETS", str(secrets)) for part in WRONG[which])
    with pytest.raises(ConfigurationError) as error:
        load(written(secrets, "broker.id=1", f"ssl.key.password={text}"))
    assert says in str(error.value)
    assert str(error.value).startswith(f"{secrets.parent}/server.properties:2: ssl.key.password: ")


def test_paths_outside_of_those_that_are_allowed_are_not_read(secrets: Path) -> None:
    for provider, path in (("file", f"{secrets}/../secrets2/x:k"), ("dir", f"{secrets.parent}:server.properties")):
        allowed = f"config.providers.{provider}.param.allowed.paths={secrets}"
        with pytest.raises(ConfigurationError, match=r"outside of allowed\.paths"):
            load(written(secrets, f"a=${{{provider}:{path}}}", allowed))
        assert load(written(secrets, f"a=${{dir:{secrets}:password}}", allowed))["a"] == "from a directory"


def test_variables_of_the_environment_that_are_not_allowed_are_not_read(secrets: Path) -> None:
    """Kafka's `EnvVarConfigProvider`: the pattern is for the whole name."""
    value = "a=${env:OTTLA_TEST_SECRET}"
    assert load(written(secrets, value, "config.providers.env.param.allowlist.pattern=OTTLA_.*"))["a"] == "from the environment"
    for pattern, says in (("OTTLA_TEST", "OTTLA_TEST_SECRET is not in allowlist.pattern"), ("*", "no pattern: nothing to repeat")):
        with pytest.raises(ConfigurationError, match=says):
            load(written(secrets, value, f"config.providers.env.param.allowlist.pattern={pattern}"))


def test_a_parameter_that_no_provider_has_is_refused(secrets: Path) -> None:
    """A misspelt one that was ignored would leave every path open."""
    with pytest.raises(
        ConfigurationError, match=r"server\.properties:1: unknown setting '.*allowed\.path'; did you mean '.*allowed\.paths'"
    ):
        load(written(secrets, f"config.providers.file.param.allowed.path={secrets}"))


def test_a_class_that_is_javas_own_is_refused_by_name(secrets: Path) -> None:
    path = secrets.parent / "server.properties"
    path.write_text("config.providers=vault,other\nconfig.providers.vault.class=com.example.Vault\n")
    with pytest.raises(ConfigurationError) as error:
        load(path)
    first, second = str(error.value).splitlines()
    assert f"{path}:2: config.providers.vault.class = 'com.example.Vault': there are " in first
    assert f"{path}:1: config.providers.other.class = ''" in second


def test_the_example_of_the_documentation_is_read(secrets: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "zookeeper.md").read_text()
    (example,) = [word for word in page.split("```") if word.startswith("properties\nconfig.providers=")]
    (secrets / "zookeeper").write_text("a password")
    path = secrets.parent / "server.properties"
    path.write_text(example.removeprefix("properties\n").replace("/run/secrets", str(secrets)))
    assert dict(load(path)) == {"zookeeper.digest.password": "a password"}
