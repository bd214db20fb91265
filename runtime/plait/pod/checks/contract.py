"""Is this engine what the operator takes it for? Both contracts, made here from flags, settings and model.

What the operator has labelled the pod with is what routers will see; an engine that turns out to be
something else would be ready and never be paired, or be paired where it must not.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from plait.contract.contract_file import ContractFile
from plait.contract.kv import GroupContract, WireContract, diff, transfer_backend
from plait.contract.layouts import KvDtype, TransferBackend
from plait.contract.rows import kv_dtype
from plait.contract.settings import Settings
from plait.contract.validate import role_of
from plait.contract.verdict import CheckResult
from plait.contract.versions import ANY_VERSION, installed_engine, plait_version
from plait.contract.violation import ContractError
from plait.engine.check import model_shape
from plait.pod.asked import Asked
from plait.pod.checks.result import bad, good

NAME = "contract"
_ONE_VERSION = "run the operator and the runtime in one version of Plait"
_AGREE = "see whether the pod's template was changed by hand, or the model's folder by another one"


def check(asked: Asked) -> list[CheckResult]:
    """Every field that differs, in one result."""
    try:
        expected = ContractFile.model_validate_json(asked.contract.read_bytes())
    except OSError as error:
        reason = f"{asked.contract}: {error.strerror}"
        return [bad(NAME, "no file", reason=reason, fix="mount the contract's ConfigMap there")]
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return [bad(NAME, str(asked.contract), reason=f"is not a contract: {faults}", fix=_ONE_VERSION)]
    try:
        return [judge(expected, *own(asked, unknown_dtype=str(expected.wire.get("kv_dtype"))))]
    except ContractError as error:
        first = error.violations[0]
        return [bad(NAME, first.field, reason="; ".join(map(str, error.violations)), fix=first.fix)]


def own(asked: Asked, *, unknown_dtype: str) -> tuple[str, WireContract, GroupContract]:
    """Role and contracts of the engine that these flags start here. Raises ContractError.

    `unknown_dtype`: how KV is taken to be stored where the engine decides that by the GPU it finds.
    """
    args = asked.args
    settings = Settings.from_env(asked.environ)
    revision = args.get("revision")
    shape = model_shape(str(args.get("model_path", "")), revision=None if revision is None else str(revision))
    named = str(args.get("disaggregation_transfer_backend", TransferBackend.MOONCAKE.value))
    wire = WireContract.of(
        shape,
        kv_dtype=stored_dtype(args, cpu=asked.cpu) or unknown_dtype,
        transfer_backend=transfer_backend(named, asked.environ),
    )
    size = args.get("attn_cp_size", 1)
    group = GroupContract(
        wire=wire,
        ranks=size if isinstance(size, int) else 1,
        split=settings.split,
        layout=settings.layout,
        engine_version=installed_engine() or "none",
        plait_version=plait_version(),
    )
    return role_of(args).value, wire, group


def stored_dtype(args: dict[str, object], *, cpu: bool) -> KvDtype | None:
    """How the engine will store KV; None where it decides that by the GPU it finds.

    On a CPU it takes itself for a GPU that stores bfloat16, whatever type it computes in.
    """
    told = str(args.get("kv_cache_dtype", "auto"))
    if told != "auto":
        return kv_dtype(told)
    return KvDtype.BF16 if cpu else None


def judge(expected: ContractFile, role: str, wire: WireContract, group: GroupContract) -> CheckResult:
    """Compare field by field, then the hashes themselves."""
    if expected.plait_version == ANY_VERSION:
        group = replace(group, plait_version=ANY_VERSION)
    told = [f"role: expected {expected.role}, here {role}"] if expected.role != role else []
    wanted = expected.group_contract()
    if wanted is None:
        # Decode is no group, but it runs the same versions.
        wanted = replace(group, wire=expected.wire_contract(), engine_version=expected.engine_version)
        wanted = replace(wanted, plait_version=expected.plait_version)
    differing = diff(wanted, group)
    told += [f"{each.field}: expected {each.left}, here {each.right}" for each in differing]
    value = f"wire {wire.hash[:16]}" + (f", group {group.hash[:16]}" if expected.group else "")
    if told:
        own_version = [each for each in differing if each.field == "plait_version"]
        return bad(NAME, value, reason="; ".join(told), fix=_ONE_VERSION if own_version else _AGREE)
    if wire.hash != expected.wire_hash or (expected.group and group.hash != expected.group_hash):
        theirs = f"wire {expected.wire_hash[:16]}, group {expected.group_hash[:16] or 'none'}"
        reason = f"the fields are equal, but the operator's hashes are {theirs}"
        return bad(NAME, value, reason=reason, fix=_ONE_VERSION)
    return good(NAME, value)
