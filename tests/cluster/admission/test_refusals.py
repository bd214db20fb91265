"""The table of manifests on a real API server, with the webhook and without it."""

import pytest
from tests.cluster.admission.conftest import Create
from tests.cluster.admission.matrix import BAD, GOOD, Bad, Good, manifest
from tests.cluster.harness.api import RefusedError


@pytest.mark.parametrize("row", BAD, ids=lambda row: row.name)
def test_a_bad_manifest_is_refused_with_every_path_in_one_message(
    row: Bad, guarded: str, dry_run: Create
) -> None:
    with pytest.raises(RefusedError) as refused:
        dry_run(guarded, manifest(row.change, cpu=row.cpu))
    told = refused.value
    if row.strict:
        assert told.code == 400
        assert all(f'unknown field "{field}"' in told.message for field in row.fields)
        return
    assert (told.code, told.reason) == (422, "Invalid"), told.message
    assert told.message.startswith('admission webhook "mutate.plait.dev" denied the request: ')
    assert sorted(cause["field"] for cause in told.causes) == sorted(row.fields)
    lines = told.message.splitlines()[1:]
    for field in row.fields:
        assert any(line.startswith((f"{field} = ", f"{field}: ")) for line in lines), told.message


@pytest.mark.parametrize("row", GOOD, ids=lambda row: row.name)
def test_a_good_manifest_passes_with_the_webhook_and_without(
    row: Good, guarded: str, unguarded: str, dry_run: Create
) -> None:
    for namespace in (guarded, unguarded):
        dry_run(namespace, manifest(row.change, cpu=row.cpu))


@pytest.mark.parametrize("row", [row for row in BAD if row.cel], ids=lambda row: row.name)
def test_without_the_webhook_the_crd_refuses_its_share(row: Bad, unguarded: str, dry_run: Create) -> None:
    with pytest.raises(RefusedError) as refused:
        dry_run(unguarded, manifest(row.change, cpu=row.cpu))
    assert refused.value.code == 422


def test_the_crds_share_is_not_small() -> None:
    assert sum(row.cel for row in BAD) >= 40
