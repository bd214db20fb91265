"""`helm test`: every replica answers, one operator leads, and the webhook refuses a manifest that is wrong.

Arguments: the operator's Service, the webhook's (empty: there is none), and the file with its authority.
Standard library only. Exit status 0: all is well; 1, with the reason, if it is not in time.
"""

import json
import socket
import ssl
import sys
import time
import urllib.request

HEALTH = 8081
# A kubelet that is busy may take two minutes and more to bring a new certificate.
DEADLINE_S = 180


class NotYetError(Exception):
    """What is not as it should be."""


def ask(url, *, body=None, context=None):
    """The body of an answer with status 200."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=5, context=context) as answer:
        return answer.read().decode()


def addresses(service, port):
    """Of all pods behind a headless Service, or the one of another."""
    found = socket.getaddrinfo(service, port, type=socket.SOCK_STREAM)
    return sorted({f"[{a[4][0]}]" if ":" in a[4][0] else a[4][0] for a in found})


def operators(service):
    leaders = 0
    pods = addresses(service, HEALTH)
    for pod in pods:
        ask(f"http://{pod}:{HEALTH}/healthz")
        ask(f"http://{pod}:{HEALTH}/readyz")
        told = ask(f"http://{pod}:{HEALTH}/metrics").splitlines()
        leaders += sum(
            line.split()[1] in ("1", "1.0") for line in told if line.startswith("plait_operator_leader ")
        )
    if leaders != 1:
        raise NotYetError(f"{leaders:g} of {len(pods)} operators lead; one has to")
    return f"{len(pods)} operators, one leads"


def webhook(service, authority):
    """A SharedKVDeployment without a spec must be refused, and the certificate must be the Service's."""
    meta = {"name": "wrong", "namespace": "default"}
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "helm-test",
            "kind": {"group": "plait.dev", "version": "v1alpha1", "kind": "SharedKVDeployment"},
            "resource": {"group": "plait.dev", "version": "v1alpha1", "resource": "sharedkvdeployments"},
            "name": "wrong",
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "helm-test"},
            "dryRun": True,
            "object": {
                "apiVersion": "plait.dev/v1alpha1",
                "kind": "SharedKVDeployment",
                "metadata": meta,
                "spec": {},
            },
            "oldObject": None,
        },
    }
    context = ssl.create_default_context(cafile=authority)
    answer = json.loads(ask(f"https://{service}/validate", body=json.dumps(review).encode(), context=context))
    if answer["response"]["allowed"]:
        raise NotYetError("the webhook let an empty spec through")
    return "the webhook refuses what is wrong"


def main(operator, admission, authority):
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            print(operators(operator))
            if admission:
                print(webhook(admission, authority))
            return 0
        except (OSError, ValueError, KeyError, NotYetError) as error:
            if time.monotonic() > deadline:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                return 1
            time.sleep(2)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
