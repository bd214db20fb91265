"""The engine's command and environment in a pod: what `plait up` gives it, with the deployment's own."""

from __future__ import annotations

from typing import Any, Final

from plait.contract.arguments import by_field, flags_of, without
from plait.contract.launch import LaunchData, decode_data, host_flags, prefill_data
from plait.contract.layouts import TransferBackend
from plait.contract.setting_kinds import PeerAccess
from plait.contract.settings import Settings
from plait.contract.validate.engine_args import KNOWN_VERSIONS, engine_args
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.capacity import kv_dtype_of
from plait_operator.children import ports
from plait_operator.children.context import Context
from plait_operator.children.merge import merged_env
from plait_operator.children.placement import rdma, side
from plait_operator.children.volumes import HUB, RUNTIME, STATE, model_path
from plait_operator.observed import Manifest

RENDEZVOUS: Final = 20000
"""Where the hosts of a group meet, on the leader."""
COMMAND: Final = ("python3", "-m", "plait.engine")


def flags(ctx: Context, role: str) -> list[str]:
    """Flags of the stock server: ours, then the deployment's arguments by name, each field once.

    Raises ContractError for an argument that the engine does not have, or a value that no flag carries.
    """
    spec = ctx.deployment.spec
    version = spec.engine.version
    table = engine_args(version if version in KNOWN_VERSIONS else KNOWN_VERSIONS[-1])
    args = {
        **_own_arguments(spec, role),
        **by_field(spec.engine.args, table=table, path="spec.engine.args"),
        **by_field(side(spec, role).args, table=table, path=f"spec.{role}.args"),
    }
    told = without(_data(ctx, role).flags, args, table=table)
    told += flags_of(args, table=table, path=f"spec.{role}.args")
    hosts = spec.prefill.nodes_per_group
    if role == "prefill" and hosts > 1:
        # The kubelet fills these in from what the LeaderWorkerSet tells each pod.
        leader = f"$(LWS_LEADER_ADDRESS):{RENDEZVOUS}"
        told += host_flags(hosts=hosts, rank="$(LWS_WORKER_INDEX)", leader=leader)
    return told


def environment(ctx: Context, role: str) -> list[Manifest]:
    """`env` of the engine and its preflight: ours, then the deployment's, then the role's."""
    spec = ctx.deployment.spec
    ours: dict[str, str] = {"PYTHONPATH": f"{RUNTIME}/site", **_data(ctx, role).env}
    if role == "prefill":
        cache = Settings(
            prefetch=spec.cache.prefetch,
            scratch_tokens=spec.cache.scratch_tokens,
            peer_access=PeerAccess(spec.cache.peer_access),
        )
        ours |= cache.to_env()
    if spec.model.source.hub is not None:
        ours["HF_HOME"] = HUB
    if spec.transfer.backend == TransferBackend.MOONCAKE_TCP.value:
        # Mooncake refuses the rest of a batch that is longer than this: long prompts are thousands of pages.
        ours["MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"] = "65536"
    if role == "prefill" and spec.prefill.nodes_per_group > 1 and rdma(spec) and spec.transfer.rdma.devices:
        ours["NCCL_IB_HCA"] = "=" + ",".join(spec.transfer.rdma.devices)
    told: list[Manifest] = [{"name": name, "value": value} for name, value in ours.items()]
    # What the other side is told to send pages to: with several networks the engine's own guess may be wrong.
    told.append({"name": "SGLANG_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    hub = spec.model.source.hub
    if hub is not None and hub.secret_ref is not None:
        key = {"name": hub.secret_ref.name, "key": hub.secret_ref.key}
        told.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}})
    return merged_env(told, spec.engine.env, side(spec, role).env)


def _data(ctx: Context, role: str) -> LaunchData:
    spec = ctx.deployment.spec
    common: dict[str, Any] = {
        "model": model_path(spec.model.source),
        "served_name": spec.model.name,
        "host": "0.0.0.0",
        "port": ports.ENGINE,
        "context_length": ctx.context_length or None,
        "state_dir": STATE,
        "transfer": spec.transfer.backend,
        "cpu": spec.engine.device == "cpu",
        "offline": spec.model.source.hub is None,
    }
    if role == "decode":
        return decode_data(**common, max_total_tokens=None)
    return prefill_data(
        **common,
        bootstrap_port=ports.BOOTSTRAP,
        cp=spec.prefill.context_parallel,
        layout=spec.cache.layout,
        split=spec.cache.split,
        chunk=spec.prefill.chunk,
        max_total_tokens=spec.prefill.max_total_tokens,
    )


def _own_arguments(spec: SharedKVDeploymentSpec, role: str) -> dict[str, object]:
    """Arguments that only a deployment has; the user's own go over them."""
    told: dict[str, object] = {}
    if spec.engine.device == "cpu":
        # The reference computes in float32. How KV is stored is another matter, and said on every device.
        told |= {"dtype": "float32", "kv_cache_dtype": kv_dtype_of(spec).value}
    else:
        told["kv_cache_dtype"] = spec.cache.dtype
        if spec.cache.dtype == "fp8_e4m3":
            # The one FP8 kernel that has been shown, and not the engine's own choice on every card.
            told |= {"dsa_prefill_backend": "flashmla_kv", "dsa_decode_backend": "flashmla_kv"}
    if spec.model.source.hub is not None:
        told["revision"] = spec.model.revision
    if rdma(spec) and spec.transfer.rdma.devices:
        told["disaggregation_ib_device"] = ",".join(spec.transfer.rdma.devices)
    if role == "decode" and spec.decode.data_parallel > 1:
        told["dp_size"] = spec.decode.data_parallel
    return told
