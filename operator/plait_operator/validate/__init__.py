"""Whether a manifest may run: pure rules, all told at once, with the contract's own validator among them."""

from plait_operator.validate.advice import warnings
from plait_operator.validate.contract import EXPERIMENTAL, stack_config
from plait_operator.validate.model import family_of_repository
from plait_operator.validate.read import read, read_replicas, read_role
from plait_operator.validate.spec import validate_spec
from plait_operator.validate.update import validate_update

__all__ = [
    "EXPERIMENTAL",
    "family_of_repository",
    "read",
    "read_replicas",
    "read_role",
    "stack_config",
    "validate_spec",
    "validate_update",
    "warnings",
]
