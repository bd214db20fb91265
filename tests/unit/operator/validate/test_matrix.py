"""The table of manifests, against the validator alone."""

import pytest
from tests.cluster.admission.matrix import BAD, GOOD, Bad, Good, manifest

from plait_operator.validate import read, warnings


def test_the_table_is_as_large_as_it_says_and_its_names_differ() -> None:
    assert len(BAD) >= 70
    assert len(GOOD) >= 25
    assert len({row.name for row in (*BAD, *GOOD)}) == len(BAD) + len(GOOD)


@pytest.mark.parametrize("row", BAD, ids=lambda row: row.name)
def test_a_bad_manifest_is_told_with_every_field_and_no_other(row: Bad) -> None:
    _, found = read(manifest(row.change, cpu=row.cpu))
    assert sorted(v.field for v in found) == sorted(row.fields), "\n".join(map(str, found))
    assert all(v.reason and v.fix for v in found)


@pytest.mark.parametrize("row", GOOD, ids=lambda row: row.name)
def test_a_good_manifest_passes_with_its_warnings(row: Good) -> None:
    deployment, found = read(manifest(row.change, cpu=row.cpu))
    assert found == []
    assert deployment is not None
    told = {text.partition(":")[0] for text in warnings(deployment)}
    assert told >= set(row.warns)
