"""One `helm install` and one YAML bring up a serving stack on a real node, keep it right, and go.

Operator, admission and router are real pods of Plait's own images; the engines are stubs in the stock image's
place, started by the real launcher after the real preflight, with the runtime injected by the real init
container. So every condition here comes from the parts themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import yaml
from tests.cluster.golden.conftest import CHART, SERVING, SYSTEM, values
from tests.cluster.harness.api import PLAIT, Api, Manifest
from tests.cluster.harness.helm import Helm
from tests.cluster.harness.kubectl import CommandError, Kubectl
from tests.cluster.harness.waiting import until
from tests.cluster.images.recipes import NAMES

from plait_operator.names import ADMITTED_GATE

SKV = (PLAIT, "SharedKVDeployment", "tiny", SERVING)
ORDER = [
    "ModelInspected",
    "Admitted",
    "PrefillReady",
    "DecodeReady",
    "TransferReady",
    "RouterReady",
    "Available",
]
CRDS = ("sharedkvdeployments.plait.dev", "sharedkvroles.plait.dev")


def truth(resource: Manifest) -> dict[str, bool]:
    """Which conditions are True."""
    return {c["type"]: c["status"] == "True" for c in resource.get("status", {}).get("conditions", [])}


def serves(resource: Manifest) -> bool:
    """All is up, and seen so for the newest generation."""
    status = resource.get("status", {})
    current = status.get("observedGeneration") == resource["metadata"]["generation"]
    told = truth(resource)
    return current and all(told.get(name) for name in ORDER) and not told.get("Progressing", True)


def pods(api: Api, role: str) -> list[Manifest]:
    """Of one role, that are not on their way out."""
    selector = f"app.kubernetes.io/instance=tiny,plait.dev/role={role}"
    found = api.list("v1", "Pod", SERVING, selector=selector)
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def chat(api: Api, *, seconds: float = 20.0) -> str:
    """What the stack answers to one request at the routers' Service."""
    service = api.get("v1", "Service", "tiny", SERVING)
    assert service is not None
    url = f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}/v1/chat/completions"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    answer = httpx.post(url, json=body, timeout=seconds)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


class Traffic:
    """Requests one after another from a thread of its own, and what went wrong with them."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answers = 0
        self.faults: list[str] = []

    def _run(self) -> None:
        while not self._end.wait(0.1):
            try:
                chat(self._api)
                self.answers += 1
            except (AssertionError, httpx.HTTPError) as fault:
                self.faults.append(f"{type(fault).__name__}: {fault}"[:300])

    @classmethod
    @contextmanager
    def flows(cls, api: Api) -> Iterator[Traffic]:
        """While in here."""
        traffic = cls(api)
        traffic._thread.start()
        try:
            yield traffic
        finally:
            traffic._end.set()
            traffic._thread.join(timeout=30)


def until_left(kubectl: Kubectl, words: tuple[str, ...], stays: set[str]) -> None:
    """Until `kubectl get … -o name` names nothing but what `stays`; pods take a moment to end."""
    last: list[set[str]] = [set()]

    def look() -> bool:
        last[0] = set(kubectl(*words).split()) - stays
        return not last[0]

    until(look, "all is gone", seconds=90, why_not=lambda: f"left: {sorted(last[0])}", every=0.5)


def test_helm_installs_it(released: None, api: Api, helm: Helm, kubectl: Kubectl) -> None:
    for name in ("plait-operator", "plait-admission"):
        kubectl("-n", SYSTEM, "rollout", "status", f"deploy/{name}", "--timeout=180s", seconds=200)
    for name in CRDS:
        assert api.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", name) is not None
    assert "kubectl apply" in helm("get", "notes", "plait", "-n", SYSTEM)
    # The namespace lets in what Pod Security `restricted` does, so these pods are such.
    running = api.list("v1", "Pod", SYSTEM, selector="app.kubernetes.io/instance=plait")
    assert len(running) == 4
    assert {pod["spec"]["nodeName"] for pod in running} == {"node0"}


def test_helm_test_passes(released: None, helm: Helm) -> None:
    assert "Succeeded" in helm("test", "plait", "-n", SYSTEM, "--timeout", "240s")


def test_what_is_wrong_is_refused_before_a_pod_starts(
    released: None, api: Api, kubectl: Kubectl, tiny: Manifest
) -> None:
    """By the webhook in its pods, with all that is wrong at once."""
    spec = {**tiny["spec"], "prefill": {**tiny["spec"]["prefill"], "contextParallel": 3}}
    spec["decode"] = {**spec["decode"], "args": {"page_size": 32}}
    with pytest.raises(CommandError) as refused:
        kubectl("apply", "-f", "-", given=yaml.safe_dump({**tiny, "spec": spec}))
    for path in ("spec.prefill.contextParallel", "spec.decode.args.page_size"):
        assert path in refused.value.output
    assert api.get(*SKV) is None


def test_one_yaml_brings_up_the_stack(released: None, api: Api, kubectl: Kubectl, tiny: Manifest) -> None:
    kubectl("apply", "-f", "-", given=yaml.safe_dump(tiny))
    first: dict[str, float] = {}
    deadline = time.monotonic() + 240

    def seen(resource: Manifest) -> bool:
        for name, true in truth(resource).items():
            if true:
                first.setdefault(name, time.monotonic())
        return serves(resource)

    resource = api.until(*SKV, seen, what="the stack serves", seconds=deadline - time.monotonic())
    # One status tells of several at once; none comes true before one that it rests on.
    for before, after in (
        ("ModelInspected", "Admitted"),
        ("Admitted", "PrefillReady"),
        ("Admitted", "DecodeReady"),
        ("Admitted", "TransferReady"),
        ("PrefillReady", "Available"),
        ("DecodeReady", "Available"),
        ("TransferReady", "Available"),
        ("RouterReady", "Available"),
    ):
        assert first[before] <= first[after], (before, after, first)
    for condition in resource["status"]["conditions"]:
        assert condition["reason"], condition
        assert condition["observedGeneration"] == resource["metadata"]["generation"], condition
    # What the engines themselves say of their contract and their room is what the status tells.
    assert len(resource["status"]["contract"]["wire"]) == len(resource["status"]["contract"]["group"]) == 64
    assert resource["status"]["capacity"]["source"] == "reported"


def test_the_columns_of_kubectl_get(released: None, kubectl: Kubectl) -> None:
    head, row = kubectl("get", "skv", "-n", SERVING).splitlines()
    told = dict(zip(head.split(), row.split(), strict=True))
    assert head.split()[:2] == ["NAME", "MODEL"]
    assert {
        k: told[k] for k in ("NAME", "MODEL", "PREFILL", "DECODE", "ROUTER", "CONTEXT", "AVAILABLE", "REASON")
    } == {
        "NAME": "tiny",
        "MODEL": "tiny",
        "PREFILL": "1/1",
        "DECODE": "1/1",
        "ROUTER": "1/1",
        "CONTEXT": "8192",
        "AVAILABLE": "True",
        "REASON": "Serving",
    }
    assert int(told["TOKENS"]) >= 8192
    wide, row = kubectl("get", "skv", "-n", SERVING, "-o", "wide").splitlines()
    told = dict(zip(wide.split(), row.split(), strict=True))
    assert told["PROGRESSING"] == "Complete"
    assert told["DEGRADED"] == "Healthy"
    assert told["ENDPOINT"].startswith("http://tiny.golden")


def test_a_chat_is_answered(released: None, api: Api) -> None:
    assert chat(api) == " a" * 5


def test_the_gate_is_the_routers_word(released: None, api: Api) -> None:
    for role in ("prefill", "decode"):
        [pod] = pods(api, role)
        assert pod["spec"]["readinessGates"] == [{"conditionType": ADMITTED_GATE}]
        [gate] = [c for c in pod["status"]["conditions"] if c["type"] == ADMITTED_GATE]
        assert gate["status"] == "True"


def test_two_operators_and_one_leads(released: None, api: Api, kubectl: Kubectl) -> None:
    """Killed, it is followed by the other, and nothing is made anew."""
    lease = api.get("coordination.k8s.io/v1", "Lease", "plait-operator", SYSTEM)
    assert lease is not None
    holder = lease["spec"]["holderIdentity"]
    selector = "app.kubernetes.io/component=operator"
    names = [pod["metadata"]["name"] for pod in api.list("v1", "Pod", SYSTEM, selector=selector)]
    [leader] = [name for name in names if name in holder]
    before = {pod["metadata"]["uid"] for role in ("prefill", "decode", "router") for pod in pods(api, role)}
    api.delete("v1", "Pod", leader, SYSTEM, grace=0)
    api.until(
        "coordination.k8s.io/v1",
        "Lease",
        "plait-operator",
        SYSTEM,
        lambda seen: (seen["spec"].get("holderIdentity") or holder) != holder,
        what="another operator leads",
        seconds=90,
    )
    # It works: what somebody changed by hand is put right.
    api.delete("v1", "Service", "tiny-router-admin", SERVING)
    api.until("v1", "Service", "tiny-router-admin", SERVING, bool, what="a deleted child is back", seconds=60)
    kubectl("-n", SYSTEM, "rollout", "status", "deploy/plait-operator", "--timeout=120s")
    after = {pod["metadata"]["uid"] for role in ("prefill", "decode", "router") for pod in pods(api, role)}
    assert before == after


def test_helm_upgrade_disturbs_nobody(released: None, api: Api, helm: Helm, kubectl: Kubectl) -> None:
    before = {
        role: [p["metadata"]["uid"] for p in pods(api, role)] for role in ("prefill", "decode", "router")
    }
    changed = values()
    changed["logLevel"] = "debug"
    with Traffic.flows(api) as traffic:
        words = ("upgrade", "plait", str(CHART), "-n", SYSTEM, "--wait", "--timeout", "180s")
        helm(*words, values=changed)
        # Written by the operator, and not to be lost by an upgrade.
        kubectl("annotate", "skv", "tiny", "-n", SERVING, "note=after-upgrade")
    assert traffic.faults == []
    assert traffic.answers > 5
    api.until(*SKV, serves, what="still serves", seconds=60)
    for role, uids in before.items():
        assert [pod["metadata"]["uid"] for pod in pods(api, role)] == uids, role


def test_one_roles_image_changes_that_role_alone(released: None, api: Api) -> None:
    """Without a request lost: new beside old, old drained before it ends."""
    [prefill_before], [decode_before] = pods(api, "prefill"), pods(api, "decode")
    patch = {"spec": {"decode": {"image": NAMES.engine_again}}}
    with Traffic.flows(api) as traffic:
        api.patch(*SKV, patch)
        api.until(*SKV, serves, what="the new decode serves", seconds=180)
        old = decode_before["metadata"]["name"]
        api.until_gone("v1", "Pod", old, SERVING, seconds=120)
    assert traffic.faults == []
    assert traffic.answers > 5
    [prefill], [decode] = pods(api, "prefill"), pods(api, "decode")
    assert prefill["metadata"]["uid"] == prefill_before["metadata"]["uid"]
    assert prefill["status"]["containerStatuses"][0]["restartCount"] == 0
    assert decode["metadata"]["uid"] != decode_before["metadata"]["uid"]
    assert decode["spec"]["containers"][0]["image"] == NAMES.engine_again


def test_an_engine_of_another_version_does_not_come_in(released: None, api: Api) -> None:
    """Its preflight says so, the status repeats it, and the old one goes on serving."""
    [before] = pods(api, "decode")
    api.patch(*SKV, {"spec": {"decode": {"image": NAMES.engine_other}}})

    def told(resource: Manifest) -> bool:
        conditions = {c["type"]: c for c in resource["status"]["conditions"]}
        transfer = conditions["TransferReady"]
        return transfer["status"] == "False" and "0.5.16" in transfer["message"]

    resource = api.until(*SKV, told, what="TransferReady says why", seconds=120)
    assert truth(resource)["Available"]
    assert chat(api) == " a" * 5
    assert before["metadata"]["uid"] in [pod["metadata"]["uid"] for pod in pods(api, "decode")]
    api.patch(*SKV, {"spec": {"decode": {"image": NAMES.engine_again}}})
    api.until(*SKV, serves, what="reverted", seconds=120)
    [after] = pods(api, "decode")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_helm_uninstall_keeps_what_serves(released: None, api: Api, helm: Helm, kubectl: Kubectl) -> None:
    helm("uninstall", "plait", "-n", SYSTEM, "--wait", "--timeout", "120s")
    for name in CRDS:
        assert api.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", name) is not None
    assert api.get(*SKV) is not None
    assert chat(api) == " a" * 5
    kinds = "deploy,rs,pod,svc,sa,secret,configmap,role,rolebinding,pdb,networkpolicy,lease,job"
    # Of the namespace itself, and the operators' Lease, which no chart can own.
    stays = {
        "serviceaccount/default",
        "configmap/kube-root-ca.crt",
        "lease.coordination.k8s.io/plait-operator",
    }
    until_left(kubectl, ("get", kinds, "-n", SYSTEM, "-o", "name"), stays)
    wide = "clusterrole,clusterrolebinding,mutatingwebhookconfiguration,validatingwebhookconfiguration"
    assert kubectl("get", wide, "-l", "app.kubernetes.io/name=plait", "-o", "name") == ""


def test_installed_again_it_takes_over_and_removes(
    released: None, api: Api, helm: Helm, kubectl: Kubectl
) -> None:
    """Nothing restarts for it, and a deletion then leaves nothing behind."""
    before = {pod["metadata"]["uid"] for role in ("prefill", "decode", "router") for pod in pods(api, role)}
    helm("install", "plait", str(CHART), "-n", SYSTEM, "--wait", "--timeout", "180s", values=values())
    kubectl("annotate", "skv", "tiny", "-n", SERVING, "note=again", "--overwrite")
    api.until(*SKV, serves, what="serves", seconds=60)
    assert before == {
        pod["metadata"]["uid"] for role in ("prefill", "decode", "router") for pod in pods(api, role)
    }
    kubectl("delete", "skv", "tiny", "-n", SERVING, "--timeout=120s", seconds=150)
    selector = "app.kubernetes.io/managed-by=plait-operator"
    kinds = "deploy,svc,sa,configmap,role,rolebinding,pdb,networkpolicy,skvr,job"

    until_left(kubectl, ("get", kinds, "-n", SERVING, "-l", selector, "-o", "name"), set())
    for role in ("prefill", "decode", "router"):
        assert pods(api, role) == [], role
