"""`spec` of a SharedKVDeployment. Every field's description is its documentation in the CRD and the docs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plait.contract.layouts import PAGE_SIZE, Layout, Split, TransferBackend
from plait.contract.versions import ENGINE_VERSIONS
from plait_operator.api.base import Section


class SecretKeyRef(Section):
    """One key of a Secret in the deployment's own namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret.")
    key: str = Field(default="token", min_length=1, max_length=253, description="Key in it.")


class SecretRef(Section):
    """A Secret in the deployment's own namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret.")


class PvcSource(Section):
    """A PersistentVolumeClaim that holds the model's folder."""

    claim_name: str = Field(min_length=1, max_length=253, description="Name of the claim.")
    path: str = Field(
        default="", max_length=4096, description="Folder of the model in the volume (empty: its root)."
    )


class HostPathSource(Section):
    """A folder on every engine node."""

    path: str = Field(min_length=1, max_length=4096, description="Absolute path of the model's folder.")


class HubSource(Section):
    """A model hub repository, which every engine downloads at its start."""

    repo: str = Field(min_length=1, max_length=200, description="Repository, for example zai-org/GLM-5-FP8.")
    secret_ref: SecretKeyRef | None = Field(
        default=None, description="Token for the hub; it is given to the engines as HF_TOKEN."
    )


class ModelSource(Section):
    """Where the weights come from: exactly one of the fields."""

    pvc: PvcSource | None = None
    host_path: HostPathSource | None = None
    hub: HubSource | None = None


class Model(Section):
    """Which model is served."""

    name: str = Field(min_length=1, max_length=253, description="Name in requests and in /v1/models.")
    source: ModelSource
    revision: str | None = Field(default=None, description="Revision of the hub repository.")
    context_length: int | None = Field(
        default=None, ge=1, description="Longest request in tokens (default: the model's own)."
    )
    family: str | None = Field(
        default=None,
        max_length=63,
        description="A model whose shape Plait knows: then nothing has to be read first.",
    )
    shape: dict[str, Any] | None = Field(
        default=None, description="The fields of the model's config.json, in place of `family`."
    )


class Engine(Section):
    """The stock engine, as both roles run it."""

    image: str = Field(min_length=1, description="Image of stock SGLang; a role may name its own.")
    version: str = Field(
        default=ENGINE_VERSIONS[-1],
        max_length=63,
        description="Version of SGLang in the image; checked before it starts.",
    )
    device: Literal["cuda", "cpu"] = Field(
        default="cuda", description="cpu: for trying things out, with a tiny model and no GPU."
    )
    args: dict[str, Any] = Field(
        default_factory=dict, description="Engine arguments of both roles, by ServerArgs field or flag."
    )
    env: list[dict[str, Any]] = Field(
        default_factory=list, description="Environment of both roles' engine containers, as in a Pod."
    )


class Runtime(Section):
    """Plait's runtime, which an init container copies into the stock engine's pod."""

    image: str | None = Field(
        default=None, description="Image of the runtime (default: that of the operator's own release)."
    )


class HostTier(Section):
    """KV in host memory behind the shared cache. Not there yet: enabling it is refused."""

    enabled: bool = Field(default=False, description="Must be false.")


class Cache(Section):
    """How a prefill group keeps its KV."""

    layout: str = Field(
        default=Layout.SHARED.value,
        max_length=63,
        description="shared: one copy per group. replicated: the reference, one copy per rank.",
    )
    split: str = Field(
        default=Split.PAGE_INTERLEAVE.value,
        max_length=63,
        description="Which rank a sequence's next page prefers.",
    )
    page_size: int = Field(default=PAGE_SIZE, description="Tokens per page; kernels count on 64.")
    dtype: str = Field(
        default="fp8_e4m3",
        max_length=63,
        description="How KV is stored: fp8_e4m3, or bfloat16. On cpu it is bfloat16, whatever stands here.",
    )
    prefetch: bool = Field(default=True, description="Fetch the dense view one layer ahead.")
    scratch_tokens: int = Field(
        default=0, ge=0, description="Tokens of one dense-view slot (0: planned from the context length)."
    )
    peer_access: Literal["auto", "required", "off"] = Field(
        default="auto",
        description="Peer mapping between the GPUs of a group. auto: collectives where there is none. "
        "required: preflight and engine fail without it. off: collectives. Write off in quotes "
        '("off"), or YAML takes it for a boolean.',
    )
    host_tier: HostTier = Field(default_factory=HostTier)


class _EngineRole(Section):
    image: str | None = Field(default=None, description="This role's engine image (default: engine.image).")
    args: dict[str, Any] = Field(
        default_factory=dict, description="Engine arguments of this role, over engine.args."
    )
    env: list[dict[str, Any]] = Field(
        default_factory=list, description="Environment of this role's engine container, over engine.env."
    )
    resources: dict[str, Any] = Field(
        default_factory=dict,
        description="Requests and limits of the engine container. GPUs and RDMA devices are filled in.",
    )
    pod_template: dict[str, Any] = Field(
        default_factory=dict,
        description="Merged into the role's pods (metadata.labels, metadata.annotations, spec); what "
        "would break the engine is refused by name.",
    )


class Prefill(_EngineRole):
    """The prefill groups. One group is one engine whose ranks share one cache."""

    replicas: int = Field(default=1, ge=0, description="Prefill groups.")
    context_parallel: int = Field(
        default=8, ge=1, description="Ranks (GPUs) of one group; the cache holds that many times the tokens."
    )
    nodes_per_group: int = Field(
        default=1, ge=1, description="Nodes that one group spans; above 1 a LeaderWorkerSet is used."
    )
    max_total_tokens: int | None = Field(
        default=None, ge=1, description="KV tokens of a group (default: what memory holds)."
    )
    chunk: int = Field(default=8192, ge=1, description="Tokens per prefill chunk, a multiple of the page.")


class Decode(_EngineRole):
    """The decode engines, one per pod."""

    replicas: int = Field(default=1, ge=0, description="Decode pods.")
    data_parallel: int = Field(default=1, ge=1, description="Data-parallel ranks (GPUs) of one decode pod.")


class Rdma(Section):
    """RDMA devices of the engine pods."""

    resource: str | None = Field(
        default=None,
        max_length=317,
        description="Extended resource of the device plugin, for example rdma/hca.",
    )
    count: int = Field(default=1, ge=1, description="How many of it each engine pod asks for.")
    devices: list[str] = Field(
        default_factory=list,
        max_length=64,
        description="Devices that transfers use, for example mlx5_0 (default: all).",
    )


class Transfer(Section):
    """How pages travel from prefill to decode."""

    backend: str = Field(
        default=TransferBackend.MOONCAKE.value, max_length=63, description="mooncake (RDMA), or mooncake_tcp."
    )
    rdma: Rdma = Field(default_factory=Rdma)


class RouterAuth(Section):
    """API keys of the clients."""

    secret_ref: SecretRef = Field(
        description="A Secret whose every key holds lines of hashed API keys, as `plait key` prints them."
    )


class RouterTls(Section):
    """TLS towards clients."""

    secret_ref: SecretRef = Field(description="A Secret of type kubernetes.io/tls.")


class RouterService(Section):
    """The Service that clients use."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the Service."
    )
    port: int = Field(default=80, ge=1, le=65535, description="Port that clients use.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the Service.")


class Router(Section):
    """The routers: OpenAI-compatible HTTP in front, pairs of prefill and decode behind."""

    replicas: int = Field(default=2, ge=0, description="Router pods.")
    image: str | None = Field(
        default=None, description="Image of the router (default: that of the operator's own release)."
    )
    processes: int = Field(default=1, ge=1, description="Processes per pod that serve clients.")
    policy: str = Field(default="prefix-aware", max_length=63, description="Choice of prefill workers.")
    decode_policy: str = Field(default="least-load", max_length=63, description="Choice of decode workers.")
    auth: RouterAuth | None = None
    tls: RouterTls | None = None
    service: RouterService = Field(default_factory=RouterService)
    resources: dict[str, Any] = Field(
        default_factory=dict, description="Requests and limits of the router container."
    )
    pod_template: dict[str, Any] = Field(
        default_factory=dict, description="Merged into the router's pods, as for the engines."
    )


class Rollout(Section):
    """How a change reaches the pods. Both sides move in lockstep, and each keeps its budget."""

    max_unavailable: int = Field(
        default=0, ge=0, description="Engine pods per role that may be missing during a rollout."
    )
    max_surge: int = Field(
        default=1, ge=0, description="Engine pods per role that may be there beyond the replicas."
    )
    drain_seconds: int = Field(
        default=120, ge=0, description="Time that requests get to end on a pod that is to go."
    )


class RoleAutoscaling(Section):
    """An autoscaler of one role. With it, the operator does not own the scaled field."""

    external: bool = Field(
        default=False, description="Another autoscaler (KEDA) scales the role: no HPA is made."
    )
    min_replicas: int = Field(default=1, ge=1, description="Fewest replicas of the HPA.")
    max_replicas: int = Field(default=1, ge=1, description="Most replicas of the HPA.")
    metrics: list[dict[str, Any]] = Field(
        default_factory=list,
        max_length=64,
        description="Metrics of the HPA (autoscaling/v2); needed unless external.",
    )
    behavior: dict[str, Any] = Field(
        default_factory=dict, description="Behaviour of the HPA (autoscaling/v2)."
    )


class Autoscaling(Section):
    """Autoscaling per role."""

    prefill: RoleAutoscaling | None = None
    decode: RoleAutoscaling | None = None


class Pods(Section):
    """What holds for all pods of the deployment."""

    image_pull_secrets: list[SecretRef] = Field(
        default_factory=list, max_length=16, description="Secrets that images are pulled with."
    )
    priority_class_name: str | None = Field(
        default=None, max_length=253, description="PriorityClass of all pods."
    )
    host_network: bool = Field(
        default=False,
        description="Engines in the node's network: for fabrics that need it. Network policies do not hold.",
    )
    network_policies: bool = Field(
        default=True, description="Make NetworkPolicies for the deployment's pods."
    )


class SharedKVDeploymentSpec(Section):
    """A shared-KV serving stack: prefill groups, decode engines and routers for one model."""

    model: Model
    engine: Engine
    runtime: Runtime = Field(default_factory=Runtime)
    cache: Cache = Field(default_factory=Cache)
    prefill: Prefill = Field(default_factory=Prefill)
    decode: Decode = Field(default_factory=Decode)
    transfer: Transfer = Field(default_factory=Transfer)
    router: Router = Field(default_factory=Router)
    rollout: Rollout = Field(default_factory=Rollout)
    autoscaling: Autoscaling = Field(default_factory=Autoscaling)
    pods: Pods = Field(default_factory=Pods)


class SharedKVRoleSpec(Section):
    """The scale of one role, apart from its deployment, so that an autoscaler can own it."""

    replicas: int = Field(default=1, ge=0, description="Replicas of the role.")
