"""What a broker's pod adds to the settings that all brokers share: which broker it is, where it is reached, where it stands.

The init container runs this before the broker. It alone has a token for the API server, and only where something must be
asked there. The outcome is one properties file that the broker and `ottla broker drain` read, in a volume in memory, since a
password may be among it.

Standard library only.
"""

# ruff: noqa: T201  (what it prints is the pod's log)
from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TLS = Path("/etc/ottla-tls")
KEYSTORE, TRUSTSTORE = "keystore.pem", "truststore.pem"
ANSWER_SECONDS = 10.0
TRIES = 6
PAUSE_SECONDS = 5.0

Ask = Callable[[str], dict[str, Any]]


class Problem(Exception):
    """The pod cannot be configured. The text says what to do."""


def ask_api_server(path: str, environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> dict[str, Any]:
    """An object of the API server, asked for with the token of this container.

    A server that does not answer is asked again for half a minute; one that says no is believed at once.
    """
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}{path}"
    token = (account / "token").read_text(encoding="ascii").strip()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
    context = ssl.create_default_context(cafile=str(account / "ca.crt"))
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS, context=context) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code < 500 or attempt == TRIES:
                raise Problem(f"GET {path}: {error.code} {error.reason}") from error
            failed: OSError = error
        except OSError as error:
            if attempt == TRIES:
                raise Problem(f"GET {path}: {error}") from error
            failed = error
        print(f"GET {path}: {failed}; asked again in {PAUSE_SECONDS:g} s", flush=True)
        time.sleep(PAUSE_SECONDS)
    raise AssertionError("the last attempt returns or raises")


def bracketed(host: str) -> str:
    """A host as it stands before a port: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def in_order(values: list[str], ordinal: int) -> str:
    """A value for each broker; over and over where there are fewer."""
    return values[ordinal % len(values)]


def node_address(node: Mapping[str, Any], kind: str) -> str:
    """ "ExternalIP" or "InternalIP" of a node."""
    for each in node["status"].get("addresses", ()):
        if each["type"] == kind:
            return str(each["address"])
    raise Problem(f"node {node['metadata']['name']} has no {kind}; set externalAccess.hosts, or nodeExternalAddress=false")


def rack(configuration: Mapping[str, Any], ordinal: int, node: Callable[[], Mapping[str, Any]]) -> str | None:
    """Where the broker stands, if that is known or asked for."""
    label, values = configuration["rack"]["node_label"], configuration["rack"]["values"]
    if values:
        return in_order(values, ordinal)
    if not label:
        return None
    found = node()["metadata"].get("labels", {}).get(label)
    if not found:
        raise Problem(f"node {node()['metadata']['name']} has no label {label}; set broker.rack.values, or fromNode=false")
    return str(found)


def load_balancer_host(service: str, path: str, ask: Ask, wait_seconds: float) -> str:
    """The address that the cloud has given a broker's Service, once it has."""
    deadline = time.monotonic() + wait_seconds
    while True:
        for each in ask(path).get("status", {}).get("loadBalancer", {}).get("ingress") or ():
            if host := each.get("hostname") or each.get("ip"):
                return str(host)
        if time.monotonic() >= deadline:
            raise Problem(f"Service {service} has been given no address within {wait_seconds:g} s; does this cluster have load balancers?")
        print(f"Service {service} has no address yet", flush=True)
        time.sleep(min(PAUSE_SECONDS, max(deadline - time.monotonic(), 0.0)))


def external_address(
    external: Mapping[str, Any], ordinal: int, environment: Mapping[str, str], ask: Ask, node: Callable[[], Mapping[str, Any]]
) -> str:
    """`host:port` at which clients outside of Kubernetes reach this broker."""
    service = f"{external['service']}-{ordinal}"
    path = f"/api/v1/namespaces/{environment['POD_NAMESPACE']}/services/{service}"
    hosts = external["hosts"]
    if external["type"] == "LoadBalancer":
        host = in_order(hosts, ordinal) if hosts else load_balancer_host(service, path, ask, external["wait_seconds"])
        return f"{bracketed(host)}:{external['port']}"
    if hosts:
        host = in_order(hosts, ordinal)
    elif external["node_external_address"]:
        host = node_address(node(), "ExternalIP")
    else:
        host = environment["HOST_IP"]
    port = external["node_ports"][ordinal] if external["node_ports"] else ask(path)["spec"]["ports"][0]["nodePort"]
    return f"{bracketed(host)}:{port}"


def own_settings(configuration: Mapping[str, Any], environment: Mapping[str, str], ask: Ask) -> dict[str, str]:
    """The settings of this one broker."""
    pod = environment["POD_NAME"]
    ordinal = int(pod.rpartition("-")[2])
    asked: dict[str, Mapping[str, Any]] = {}

    def node() -> Mapping[str, Any]:
        if not asked:
            asked[""] = ask(f"/api/v1/nodes/{environment['NODE_NAME']}")
        return asked[""]

    name = f"{pod}.{configuration['domain']}"
    advertised = [f"INTERNAL://{name}:9092"]
    if "external" in configuration:
        advertised.append(f"EXTERNAL://{external_address(configuration['external'], ordinal, environment, ask, node)}")
    settings = {
        "broker.id": str(configuration["id_base"] + ordinal),
        "advertised.listeners": ",".join(advertised),
        "control.advertised.listener": f"{name}:9095",
    }
    if (stands := rack(configuration, ordinal, node)) is not None:
        settings["broker.rack"] = stands
    if configuration["zookeeper_digest"]:
        settings["zookeeper.digest.username"] = environment["ZOOKEEPER_DIGEST_USERNAME"]
        settings["zookeeper.digest.password"] = environment["ZOOKEEPER_DIGEST_PASSWORD"]
    return settings


def stores(tls: Mapping[str, str], secret: Path) -> dict[str, str]:
    """The files that brokers take keys from, by name: key and chain in one, and the authorities if there are any."""

    def part(key: str) -> str:
        try:
            return (secret / key).read_text(encoding="ascii", errors="replace").strip() + "\n"  # comments are in any language
        except OSError as error:
            raise Problem(f"the Secret with the certificate has no {key}: {error}") from error

    files = {KEYSTORE: part(tls["private_key"]) + part(tls["certificate"])}
    if (secret / tls["authorities"]).exists():
        files[TRUSTSTORE] = part(tls["authorities"])
    return files


def property_line(name: str, value: str) -> str:
    """A line that java.util.Properties, and Ottla, read back as it was."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"{name}={chr(92) if text.startswith(' ') else ''}{text}\n"


def write(path: Path, text: str) -> None:
    """For this user and its group only."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o440), "w", encoding="utf-8") as file:
        file.write(text)


def configure(source: Path, into: Path, environment: Mapping[str, str], ask: Ask, secret: Path = TLS) -> dict[str, str]:
    """Writes the broker's files, and gives the settings that are this broker's own."""
    configuration = json.loads((source / "pod.json").read_text(encoding="utf-8"))
    settings = own_settings(configuration, environment, ask)
    for name, text in (stores(configuration["tls"], secret) if "tls" in configuration else {}).items():
        write(into / name, text)
        if name == TRUSTSTORE:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(into / TRUSTSTORE)}
    own = "".join(property_line(name, value) for name, value in settings.items())
    shared = (source / "server.properties").read_text(encoding="utf-8").rstrip("\n")
    write(into / "server.properties", f"{shared}\n# Of this broker:\n{own}")
    return settings


def main() -> int:
    """The init container's command."""
    parser = argparse.ArgumentParser(description="Write the properties of the broker in this pod.")
    parser.add_argument("--from", dest="source", type=Path, required=True, help="where server.properties and pod.json are")
    parser.add_argument("--into", type=Path, required=True, help="where the broker's files are written")
    arguments = parser.parse_args()
    try:
        settings = configure(arguments.source, arguments.into, os.environ, ask_api_server)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    print(" ".join(f"{name}={value}" for name, value in settings.items() if "password" not in name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
