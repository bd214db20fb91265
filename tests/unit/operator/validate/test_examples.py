"""The chart's example deployments are ones that admission lets in."""

from pathlib import Path

import pytest
import yaml

from plait_operator.validate import read

_EXAMPLES = sorted((Path(__file__).parents[4] / "charts" / "plait" / "examples").glob("*.yaml"))


def test_there_are_examples() -> None:
    assert {path.stem for path in _EXAMPLES} >= {"glm-5-8xh200"}


@pytest.mark.parametrize("path", _EXAMPLES, ids=lambda path: path.stem)
def test_an_example_passes(path: Path) -> None:
    manifests = [each for each in yaml.safe_load_all(path.read_text()) if each]
    deployments = [each for each in manifests if each["kind"] == "SharedKVDeployment"]
    assert deployments
    for each in deployments:
        deployment, found = read(each)
        assert found == [], "\n".join(map(str, found))
        assert deployment is not None
