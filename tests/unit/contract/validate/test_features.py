import fnmatch

import pytest

from plait.contract.layouts import Role
from plait.contract.validate.allowed import ALLOWED
from plait.contract.validate.constraints import CONSTRAINTS
from plait.contract.validate.engine_args import engine_args
from plait.contract.validate.features import FEATURES, feature_of


def test_every_pattern_names_a_field_of_the_engine() -> None:
    for feature in FEATURES:
        for pattern in feature.fields:
            assert fnmatch.filter(engine_args().fields, pattern), f"{feature.name}: {pattern}"


def test_every_feature_is_refused_somewhere() -> None:
    open_ = {role: ALLOWED[role] | set(CONSTRAINTS[role]) for role in (Role.PREFILL, Role.DECODE)}
    for feature in FEATURES:
        fields = [f for f in engine_args().fields if feature.holds(f)]
        assert any(f not in open_[role] for f in fields for role in open_), feature.name


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("speculative_algorithm", "speculative decoding"),
        ("hicache_size", "hierarchical cache"),
        ("enable_lora", "LoRA"),
        ("enable_two_batch_overlap", "batch overlap"),
        ("dsa_prefill_cp_mode", "the legacy context-parallel switches"),
    ],
)
def test_feature_of(field: str, name: str) -> None:
    feature = feature_of(field)
    assert feature is not None
    assert feature.name == name


def test_a_field_without_a_name_of_its_own() -> None:
    assert feature_of("enable_http2") is None
