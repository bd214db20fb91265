from typing import Any

import pytest
from tests.cluster.admission.matrix import manifest

from plait.contract.validate import engine_args
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.validate import read
from plait_operator.validate.arguments import OWNED, OWNED_OF_PREFILL, arguments


def spec(**args: dict[str, Any]) -> SharedKVDeploymentSpec:
    change = {f"spec/{place}/args": told for place, told in args.items()}
    return SharedKVDeploymentSpec.model_validate(manifest(change)["spec"])


def test_every_argument_of_the_table_is_one_of_the_engines() -> None:
    assert set(OWNED) | set(OWNED_OF_PREFILL) <= set(engine_args().fields)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        *((place, name) for place in ("engine", "prefill", "decode") for name in OWNED),
        *((place, name) for place in ("engine", "prefill") for name in OWNED_OF_PREFILL),
    ],
)
def test_each_is_refused_once_where_it_was_written(place: str, name: str) -> None:
    _, found = read(manifest({f"spec/{place}/args": {name: 64}}))
    assert [v.field for v in found] == [f"spec.{place}.args.{name}"]
    owned = (OWNED | OWNED_OF_PREFILL)[name]
    assert found[0].reason == owned.why
    if place == "decode" and owned.decode:
        assert found[0].fix == f"{owned.decode}; remove it"
    else:
        assert owned.place in found[0].fix
        assert (owned.decode in found[0].fix) == (place == "engine" or not owned.decode)


@pytest.mark.parametrize("key", ["page_size", "page-size", "--page-size"])
def test_a_flag_is_the_same_as_its_field(key: str) -> None:
    [refused] = arguments(spec(prefill={key: 64})).refused
    assert refused.field == f"spec.prefill.args.{key}"


def test_a_roles_own_goes_over_the_shared_one_whatever_its_spelling() -> None:
    told = arguments(spec(engine={"log-level": "info", "gc_threshold": [1]}, prefill={"log_level": "debug"}))
    assert [(a.key, a.value, a.path) for a in told.prefill] == [
        ("gc_threshold", [1], "spec.engine.args.gc_threshold"),
        ("log_level", "debug", "spec.prefill.args.log_level"),
    ]
    assert [a.path for a in told.decode] == ["spec.engine.args.log-level", "spec.engine.args.gc_threshold"]


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        ({"engine": {"max_running_requests": "x"}}, ["spec.engine.args.max_running_requests"]),
        ({"engine": {"random_seed": 1.5}}, ["spec.engine.args.random_seed"]),
        ({"engine": {"skip_server_warmup": "yes"}}, ["spec.engine.args.skip_server_warmup"]),
        ({"engine": {"tokenizer_path": {"a": 1}}}, ["spec.engine.args.tokenizer_path"]),
        ({"engine": {"gc_threshold": [[1]]}}, ["spec.engine.args.gc_threshold"]),
        ({"engine": {"log_level": "a", "log-level": "b"}}, ["spec.engine.args.log-level"]),
        ({"engine": {"disable_overlap_schedule": False}}, ["spec.engine.args.disable_overlap_schedule"]),
        ({"engine": {"disable_overlap_schedule": True}}, []),
        ({"prefill": {"enable_mixed_chunk": True}}, ["spec.prefill.args.enable_mixed_chunk"]),
        ({"decode": {"chunked_prefill_size": 4096, "max_total_tokens": 65536}}, []),
        ({"prefill": {"dsa_prefill_backend": "flashmla_sparse"}}, ["spec.prefill.args.dsa_prefill_backend"]),
    ],
)
def test_values(args: dict[str, Any], fields: list[str]) -> None:
    change = {f"spec/{place}/args": told for place, told in args.items()}
    assert [v.field for v in read(manifest(change))[1]] == fields
