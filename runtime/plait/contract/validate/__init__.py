"""The one validator: start-up, `plait check` and admission call it, and it tells all violations at once."""

from plait.contract.validate.argv import parse_engine_argv
from plait.contract.validate.engine import role_of, validate_engine, validate_resolved
from plait.contract.validate.engine_args import KNOWN_VERSIONS, engine_args
from plait.contract.validate.launch import validate_launch
from plait.contract.validate.stack import validate_file, validate_stack
from plait.contract.violation import ContractError, Violation

__all__ = [
    "KNOWN_VERSIONS",
    "ContractError",
    "Violation",
    "engine_args",
    "parse_engine_argv",
    "role_of",
    "validate_engine",
    "validate_file",
    "validate_launch",
    "validate_resolved",
    "validate_stack",
]
