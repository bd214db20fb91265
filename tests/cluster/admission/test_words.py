"""What a person sees: kubectl's own output."""

import time

import pytest
import yaml
from tests.cluster.admission.conftest import Create
from tests.cluster.admission.matrix import manifest
from tests.cluster.harness.kubectl import CommandError, Kubectl, run


def test_a_refusal_is_a_list_with_a_line_for_each_fault(guarded: str, kubectl: Kubectl) -> None:
    bad = manifest({"spec/router/policy": "prefix_aware", "spec/prefill/args": {"page_size": 32}})
    with pytest.raises(CommandError) as refused:
        kubectl("create", "-f", "-", "-n", guarded, given=yaml.safe_dump(bad))
    lines = refused.value.output.strip().splitlines()
    assert lines[0].strip() == 'The SharedKVDeployment "glm" is invalid:'
    assert len(lines) == 3
    assert (
        "* spec.prefill.args.page_size: Invalid value: 32: the operator sets this argument itself. "
        "Fix: remove it; its place is spec.cache.pageSize"
    ) in lines
    assert any(line.startswith('* spec.router.policy: Invalid value: "prefix_aware": ') for line in lines)


def test_warnings_are_shown_once_and_refuse_nothing(guarded: str, kubectl: Kubectl) -> None:
    unwise = yaml.safe_dump(manifest({"spec/router/replicas": 1}))
    words = [*kubectl.command, "create", "--dry-run=server", "-f", "-", "-n", guarded]
    told = run(["sh", "-c", '"$@" 2>&1', "sh", *words], given=unwise)
    assert "created (server dry run)" in told
    assert told.count("Warning: spec.router.replicas: with one router") == 1
    assert told.count("Warning: spec.router.auth: ") == 1


def test_a_review_takes_milliseconds(guarded: str, unguarded: str, dry_run: Create) -> None:
    body = manifest({})
    seconds = {}
    for namespace in (guarded, unguarded):
        dry_run(namespace, body)
        started = time.perf_counter()
        for _ in range(50):
            dry_run(namespace, body)
        seconds[namespace] = (time.perf_counter() - started) / 50
    more = seconds[guarded] - seconds[unguarded]
    print(f"both webhooks together: {more * 1000:.1f} ms beside {seconds[unguarded] * 1000:.1f} ms without")
    assert more < 0.5, "and the API server waits for up to 10 s"
