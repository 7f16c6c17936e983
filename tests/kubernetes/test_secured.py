"""A release with everything that is off by default: TLS at every listener, client certificates, racks from nodes, an ensemble."""

# ruff: noqa: T201  (figures, for anyone who runs it with -s)
from __future__ import annotations

import ipaddress
import json
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.kubernetes.cluster import FULLNAME, RELEASE, WAIT_SECONDS, Cluster, Failed, namespaced, run, until

pytestmark = pytest.mark.timeout(4 * WAIT_SECONDS)

NODE_LABEL = "kubernetes.io/hostname"  # every node has it, which is more than can be said of zones


def pem(key: ec.EllipticCurvePrivateKey) -> str:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode("ascii")


def certificate(namespace: str, addresses: list[str]) -> dict[str, str]:
    """What cert-manager would put into the Secret: one certificate for all brokers, by an authority of its own."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
    now = datetime.now(UTC)
    since, until_when = now - timedelta(hours=1), now + timedelta(hours=12)
    authority = (
        x509.CertificateBuilder(authority_name, authority_name, authority_key.public_key(), x509.random_serial_number(), since, until_when)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    domain = f"{namespace}.svc.cluster.local"
    names: list[x509.GeneralName] = [x509.DNSName(f"*.{FULLNAME}-broker-headless.{domain}"), x509.DNSName(f"{FULLNAME}.{domain}")]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    own_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "brokers")])
    own = (
        x509.CertificateBuilder(authority_name, own_name, key.public_key(), x509.random_serial_number(), since, until_when)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    return {
        "tls.crt": own.public_bytes(encoding).decode("ascii"),
        "tls.key": pem(key),
        "ca.crt": authority.public_bytes(encoding).decode("ascii"),
    }


@pytest.fixture(scope="module")
def secured() -> Iterator[Cluster]:
    with namespaced() as cluster:
        nodes = json.loads(run("kubectl", "get", "nodes", "--output=json"))["items"]
        addresses = [address["address"] for node in nodes for address in node["status"]["addresses"] if address["type"] == "InternalIP"]
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "brokers-tls"}}
        cluster.kubectl("apply", "--filename=-", given=json.dumps({**secret, "stringData": certificate(cluster.namespace, addresses)}))
        since = time.monotonic()
        cluster.deploy(
            "install",
            tls__existingSecret="brokers-tls",
            tls__listeners=["INTERNAL", "EXTERNAL", "CONTROL"],
            tls__clientAuth="required",
            broker__rack={"fromNode": True, "nodeLabel": NODE_LABEL, "values": []},
            zookeeper__replicas=3,
        )
        print(f"\nthree brokers over three ZooKeeper servers with TLS everywhere, ready after {time.monotonic() - since:.0f} s")
        yield cluster


def test_every_listener_speaks_tls_and_nothing_else(secured: Cluster) -> None:
    """`helm test` with the brokers' own certificate, through both listeners, and a broker taken away."""
    secured.helm("test", RELEASE, f"--timeout={WAIT_SECONDS}s")
    for check in ("internal", "external"):
        assert "there and back through all 3 brokers" in secured.kubectl("logs", f"{FULLNAME}-check-{check}")
    assert "0 refused, 0 lost, 0 doubled" in secured.kubectl("logs", f"{FULLNAME}-check-failover")
    until("all ready", lambda: secured.ready_brokers() == 3)
    with pytest.raises(Failed):
        secured.ottla("topics", "list", "--property", "socket.timeout.ms=3000")


def test_a_broker_stands_in_the_rack_of_its_node(secured: Cluster) -> None:
    node = secured.get("pod", f"{FULLNAME}-broker-0")["spec"]["nodeName"]
    label = json.loads(run("kubectl", "get", "node", node, "--output=json"))["metadata"]["labels"][NODE_LABEL]
    said = secured.kubectl("logs", f"{FULLNAME}-broker-0", "--container=configure")
    assert f"broker.rack={label}" in said


def test_a_drain_is_told_through_tls(secured: Cluster) -> None:
    """The preStop hook's lines are among the broker's; a pod that goes takes those along, so they are followed."""
    pod = f"{FULLNAME}-broker-2"
    command = ["kubectl", "--namespace", secured.namespace, "logs", pod, "--container=broker", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as followed:
        try:
            secured.kubectl("delete", "pod", pod, seconds=150)
            said, _ = followed.communicate(timeout=60)
        finally:
            followed.kill()
    assert "Broker 2 hands over what it leads." in said
    until("all brokers are ready", lambda: secured.ready_brokers() == 3)


def test_brokers_survive_the_loss_of_the_server_that_they_coordinate_by(secured: Cluster) -> None:
    """One of three ZooKeeper servers, whichever leads or not, is no reason for a broker to be anything but ready."""
    for ordinal in range(3):
        pod = f"{FULLNAME}-zookeeper-{ordinal}"
        uid = secured.get("pod", pod)["metadata"]["uid"]
        secured.kubectl("delete", "pod", pod, "--grace-period=1", seconds=60)
        until("another server is ready", partial(secured.is_another_and_ready, pod, uid))
        until("all brokers are ready", lambda: secured.ready_brokers() == 3)
    assert [secured.restarts(number) for number in range(3)] == [0, 0, 0], "a broker was restarted, for which there was no reason"
