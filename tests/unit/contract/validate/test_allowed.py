from plait.contract.layouts import Role
from plait.contract.validate.allowed import ALLOWED
from plait.contract.validate.constraints import CONSTRAINTS
from plait.contract.validate.engine_args import engine_args


def test_allowed_fields_exist_and_are_not_also_constrained() -> None:
    for role, allowed in ALLOWED.items():
        assert allowed <= set(engine_args().fields)
        assert not allowed & set(CONSTRAINTS[role])


def test_what_decides_the_cache_is_never_free() -> None:
    for name in ("page_size", "kv_cache_dtype", "tp_size", "attn_cp_size", "pp_size", "dp_size", "dcp_size"):
        assert all(name not in allowed for allowed in ALLOWED.values())
    assert "chunked_prefill_size" not in ALLOWED[Role.PREFILL]
