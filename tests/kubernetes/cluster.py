"""kubectl and helm, driven from outside, and a pod that produces and consumes meanwhile.

Nothing of one cluster's kind is used: no host's address, no Docker. OTTLA_HELM_SET is given to `--set`, to name images where they
have other names; OTTLA_KUBERNETES_WAIT is how many seconds a pod's start may take on a slow machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tests.helm.charting import CHART, helm_program

LOAD: Final = Path(__file__).with_name("load.py")
WAIT_SECONDS: Final = int(os.environ.get("OTTLA_KUBERNETES_WAIT", "300"))
RELEASE: Final = "mine"
FULLNAME: Final = f"{RELEASE}-ottla"


class Failed(AssertionError):
    """A command of kubectl or helm that ended badly, with what it said."""


def run(*command: str, seconds: float = 60, given: str | None = None) -> str:
    """A command's output; Failed when its exit code is not 0, or when it does not end: an `exec` into a pod that goes may hang."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, input=given)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(command[:6])} …: not ended after {seconds:g} s") from error
    if ended.returncode != 0:
        raise Failed(f"{' '.join(command[:6])} …: exit code {ended.returncode}: {ended.stderr.strip()[-2000:]}")
    return ended.stdout


def until(what: str, happened: Callable[[], bool], seconds: float = WAIT_SECONDS) -> float:
    """Waits, and gives the seconds that it took."""
    since = time.monotonic()
    while not happened():
        if time.monotonic() - since > seconds:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        time.sleep(0.5)
    return time.monotonic() - since


@contextmanager
def namespaced() -> Iterator[Cluster]:
    """An empty namespace; deleted at the end, volumes included, whatever happened. It must not stay in someone's cluster."""
    if not os.environ.get("KUBECONFIG"):
        pytest.fail("KUBECONFIG has to name the cluster to install in: it is never guessed")
    if shutil.which("kubectl") is None:
        pytest.fail("kubectl is not here")
    cluster = Cluster(f"ottla-check-{uuid.uuid4().hex[:6]}")
    run("kubectl", "create", "namespace", cluster.namespace)
    try:
        yield cluster
    finally:
        # What has no namespace would stay without helm.
        subprocess.run(
            [helm_program(), "uninstall", RELEASE, "--namespace", cluster.namespace], capture_output=True, timeout=60, check=False
        )
        subprocess.run(["kubectl", "delete", "namespace", cluster.namespace], capture_output=True, timeout=WAIT_SECONDS, check=False)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A namespace with one release in it."""

    namespace: str

    def kubectl(self, *arguments: str, seconds: float = 60, given: str | None = None) -> str:
        return run("kubectl", "--namespace", self.namespace, *arguments, seconds=seconds, given=given)

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "--output", "json"))
        return found

    def helm(self, *arguments: str, seconds: float = WAIT_SECONDS + 60) -> str:
        return run(helm_program(), *arguments, "--namespace", self.namespace, seconds=seconds)

    def deploy(self, verb: str, **values: object) -> str:
        """`helm install` with the values for a small cluster, or `helm upgrade` with those there are; and these. Waits for readiness."""
        given = [f"--set-json={name.replace('__', '.')}={json.dumps(value)}" for name, value in values.items()]
        if verb == "install":
            given.insert(0, f"--values={CHART / 'ci' / 'one-node.yaml'}")
            if own := os.environ.get("OTTLA_HELM_SET"):
                given.insert(1, f"--set={own}")
        else:
            given.insert(0, "--reset-then-reuse-values")
        return self.helm(verb, RELEASE, str(CHART), *given, "--wait", f"--timeout={WAIT_SECONDS}s")

    def image(self) -> str:
        pod = self.get("pod", f"{FULLNAME}-broker-0")
        return str(pod["spec"]["containers"][0]["image"])

    def ottla(self, *arguments: str, broker: int = 0, seconds: float = 180) -> str:
        """The command, in the pod of a broker."""
        return self.kubectl("exec", f"{FULLNAME}-broker-{broker}", "--container=broker", "--", "ottla", *arguments, seconds=seconds)

    def facts(self, broker: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ottla("cluster", "--json", broker=broker))
        return found

    def is_whole(self, brokers: int) -> bool:
        """Whether all brokers live and every replica is in sync."""
        try:
            facts = self.facts()
        except Failed:
            return False
        wrong = [*facts["offline"], *facts["under_replicated"], *facts["missing_brokers"]]
        return len(facts["brokers"]) == brokers and facts["controller_id"] is not None and not wrong

    def ready_brokers(self) -> int:
        return int(self.get("statefulset", f"{FULLNAME}-broker")["status"].get("readyReplicas", 0))

    def is_another_and_ready(self, pod: str, uid: str) -> bool:
        """Whether a pod of that name, but not the one of that uid, is ready."""
        try:
            found = self.get("pod", pod)
        except Failed:
            return False
        ready = [condition["status"] for condition in found["status"].get("conditions", ()) if condition["type"] == "Ready"]
        return found["metadata"]["uid"] != uid and ready == ["True"]

    def restarts(self, broker: int) -> int:
        return int(self.get("pod", f"{FULLNAME}-broker-{broker}")["status"]["containerStatuses"][0]["restartCount"])

    def evict(self, broker: int) -> None:
        """As `kubectl drain` does: asked for, and refused when a budget says so."""
        served = run("kubectl", "api-versions").split()
        eviction = {
            "apiVersion": "policy/v1" if "policy/v1" in served else "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": f"{FULLNAME}-broker-{broker}", "namespace": self.namespace},
        }
        path = f"/api/v1/namespaces/{self.namespace}/pods/{FULLNAME}-broker-{broker}/eviction"
        run("kubectl", "create", "--raw", path, "--filename=-", given=json.dumps(eviction))

    def kill(self, broker: int) -> None:
        """SIGKILL to the broker's process: no drain, no clean shutdown. What tini has started is the only child of process 1."""
        pod = f"{FULLNAME}-broker-{broker}"
        self.kubectl("exec", pod, "--container=broker", "--", "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")


class Load:
    """A pod that produces and consumes for as long as the block lasts; `outcome` is there after it."""

    def __init__(self, cluster: Cluster, name: str, replicas: int = 3) -> None:
        self._cluster, self._name, self._replicas = cluster, f"load-{name}", replicas
        self.topic = f"load-{name}"
        self.outcome: dict[str, Any] = {}

    def __enter__(self) -> Load:
        bootstrap_server = f"{FULLNAME}.{self._cluster.namespace}.svc.cluster.local:9092"
        arguments = [LOAD.read_text(encoding="utf-8"), bootstrap_server, self.topic, str(self._replicas)]
        container = {
            "name": "load",
            "image": self._cluster.image(),
            "imagePullPolicy": "IfNotPresent",
            "command": ["tini", "--", "python", "-c"],
            "args": arguments,
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self._name, "labels": {f"{FULLNAME}-client": "true"}},
            "spec": {"restartPolicy": "Never", "enableServiceLinks": False, "containers": [container]},
        }
        self._cluster.kubectl("apply", "--filename=-", given=json.dumps(pod))
        try:
            until(f"{self._name} produces", self._has_started)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._cluster.kubectl('logs', self._name)[-2000:]}") from error
        return self

    def _has_started(self) -> bool:
        try:
            self._cluster.kubectl("exec", self._name, "--", "test", "-e", "/tmp/started")
        except Failed:
            return False
        return True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._cluster.kubectl("exec", self._name, "--", "touch", "/tmp/stop")
            until(f"{self._name} ends", lambda: self._phase() in ("Succeeded", "Failed"))
            said = self._cluster.kubectl("logs", self._name)
            assert self._phase() == "Succeeded", said[-2000:]
            self.outcome = json.loads(said.strip().splitlines()[-1])
        self._cluster.kubectl("delete", "pod", self._name, "--wait=false", "--grace-period=1")

    def _phase(self) -> str:
        return str(self._cluster.get("pod", self._name)["status"]["phase"])
