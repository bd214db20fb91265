"""How a model's shape becomes known: the Job's every state, as a table; then whole stories."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.plan.world import NOW, World

from plait.contract.families import FAMILIES
from plait.contract.shape import CONFIG_FIELDS
from plait.contract.verdict import Inspected, Trouble
from plait_operator import names
from plait_operator.actions import Apply, Delete
from plait_operator.children.inspect import INSPECT, SOURCE, inspected_map, source_digest
from plait_operator.observed import PodFact, Ref
from plait_operator.plan.clock import after
from plait_operator.plan.inspect import LONGEST_S, SHORTEST_S, inspect

SHAPE = FAMILIES["deepseek-v3.2"]
CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v32",
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64, "max_position_embeddings": 163840,
    "q_lora_rank": 1536, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_nextn_predict_layers": 1,
    "architectures": ["DeepseekV32ForCausalLM"],
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip


def unknown(**spec: Any) -> World:
    return World(**{"model": {"family": None, **spec.pop("model", {})}, **spec})


def job(world: World) -> Ref:
    return next(ref for ref in world.children if ref.kind == "Job")


def ended(world: World, kind: str, *, at: str = NOW) -> None:
    world.children[job(world)]["status"] = {
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": at, "message": "BackoffLimitExceeded"}
        ]
    }


def pod(world: World, **fact: Any) -> None:
    revision = world.children[job(world)]["metadata"]["labels"][names.REVISION]
    world.pods.append(PodFact("glm-inspect-x", f"p-{len(world.pods)}", INSPECT, revision, **fact))


def good() -> str:
    return Inspected(
        ok=True, config={key: value for key, value in CONFIG.items() if key in CONFIG_FIELDS}
    ).message()


def bad() -> str:
    return Inspected(
        ok=False,
        errors=[Trouble(field="config.json", reason="no such file", fix="mend spec.model.source.pvc.path")],
    ).message()


def test_the_test_config_is_a_whole_one() -> None:
    assert set(CONFIG_FIELDS) & set(CONFIG)


@pytest.mark.parametrize("model", [{"family": "deepseek-v3.2"}, {"family": None, "shape": CONFIG}])
def test_nothing_is_read_where_the_spec_says_it(model: dict[str, Any]) -> None:
    world = World(model=model)
    assert not any(isinstance(one, Apply) and one.manifest["kind"] == "Job" for one in world.plan().actions)
    world.settle()
    assert world.said("ModelInspected")[0] == "True"


def test_a_job_is_made_and_what_can_be_is_made_beside_it() -> None:
    world = unknown()
    world.step()
    kinds = {ref.kind for ref in world.children}
    assert {"Job", "Service", "NetworkPolicy"} <= kinds
    assert world.workloads("decode") == {}
    assert world.said("ModelInspected") == ("False", "Inspecting")
    assert world.said("Admitted") == ("Unknown", "NotChecked")
    world.settle()
    assert sum(ref.kind == "Job" for ref in world.children) == 1


def test_its_answer_is_kept_the_job_goes_and_engines_come() -> None:
    world = unknown()
    world.step()
    pod(world, terminated=good(), phase="Succeeded")
    actions = world.step()
    assert any(isinstance(one, Apply) and one.manifest["metadata"]["name"] == "glm-model" for one in actions)
    # The shape is known at once: nothing waits for the watch to tell of the ConfigMap.
    assert len(world.workloads("decode")) == 1
    world.settle()
    assert not any(ref.kind == "Job" for ref in world.children)
    assert world.said("ModelInspected") == ("True", "Known")
    assert world.said("Available") == ("True", "Serving")
    assert world.plan().actions == ()


def test_another_source_is_read_again_while_what_runs_goes_on() -> None:
    world = unknown()
    world.step()
    pod(world, terminated=good())
    world.settle()
    before = world.replicas("decode")
    world.pods = [one for one in world.pods if one.role != INSPECT]
    world.change(model={"source": {"pvc": {"claimName": "other"}}})
    world.settle()
    assert world.said("ModelInspected") == ("False", "Inspecting")
    assert world.replicas("decode") == before
    assert world.said("Available") == ("True", "Serving")
    pod(world, terminated=good())
    world.settle()
    assert world.said("ModelInspected") == ("True", "Known")
    assert set(world.replicas("decode")) != set(before)
    assert len(world.replicas("decode")) == 1


@pytest.mark.parametrize("broken", ["", "{", "[]", '"x"'])
def test_an_answer_that_somebody_broke_is_read_again(broken: str) -> None:
    world = unknown()
    world.step()
    pod(world, terminated=good())
    world.settle()
    world.pods = [one for one in world.pods if one.role != INSPECT]
    world.child("ConfigMap", "glm-model")["data"]["config.json"] = broken
    world.step()
    assert any(ref.kind == "Job" for ref in world.children)


def test_a_job_of_a_former_source_goes() -> None:
    world = unknown()
    world.step()
    former = job(world)
    world.change(model={"source": {"pvc": {"claimName": "other"}}})
    told = world.step()
    assert [one.ref for one in told if isinstance(one, Delete)] == [former]
    assert job(world) != former
    assert len([ref for ref in world.children if ref.kind == "Job"]) == 1


ROWS = [
    # (name, Job's end, pod, seconds since, state, words, what is done)
    ("runs", None, None, 0, "running", "runs", None),
    ("image", None, {"waiting": "ImagePullBackOff: inspect: denied"}, 0, "running", "denied", None),
    ("no node", None, {"unschedulable": "0/3 nodes"}, 0, "running", "0/3 nodes", None),
    ("failed, why", "Failed", {"terminated": bad()}, 1, "failed", "no such file. Fix: mend", None),
    ("failed, mute", "Failed", None, 1, "failed", "BackoffLimitExceeded", None),
    ("failed, killed", "Failed", {"terminated": "Killed"}, 1, "failed", "not a inspected", None),
    ("failed, when", "Failed", None, 1, "failed", "tried again at 2026-01-01T00:00:30Z", None),
    ("failed, pause over", "Failed", {"terminated": bad()}, 30, "failed", "no such file", Delete),
    ("ended, answer late", "Complete", None, 5, "running", "does not tell", None),
    ("ended, answer lost", "Complete", None, 60, "failed", "does not tell", Delete),
    ("answered", "Complete", {"terminated": good()}, 0, "known", "", Apply),
    ("answered before it ended", None, {"terminated": good()}, 0, "known", "", Apply),
]


@pytest.mark.parametrize(
    ("end", "fact", "since", "state", "words", "done"), [pytest.param(*row[1:], id=row[0]) for row in ROWS]
)
def test_every_state_of_the_job(
    end: str | None, fact: dict[str, Any] | None, since: float, state: str, words: str, done: type | None
) -> None:
    world = unknown()
    world.step()
    if end:
        ended(world, end)
    if fact:
        pod(world, **fact)
    world.wait(since)
    told = inspect(deployment_of(world), world.observed, world.release)
    assert told.state == state
    assert words in told.message
    assert [type(one) for one in told.actions] == ([done] if done else [])
    if state != "known" and not done and end:
        assert told.again_s is not None
        assert told.again_s > 0


def deployment_of(world: World) -> Any:
    from plait_operator.api.resource import SharedKVDeployment

    return SharedKVDeployment.of(world.body)


def test_pauses_grow_with_all_that_was_tried_and_end_somewhere() -> None:
    world = unknown()
    world.step()
    pauses = []
    for _ in range(9):
        ended(world, "Failed", at=world.now)
        world.settle()
        told = inspect(deployment_of(world), world.observed, world.release)
        assert told.again_s is not None
        pauses.append(told.again_s)
        assert world.plan().again_s == told.again_s
        world.wait(told.again_s)
        world.step()
        assert not any(ref.kind == "Job" for ref in world.children)
        world.step()
    assert pauses[0] == SHORTEST_S
    assert pauses[-1] == LONGEST_S
    assert pauses == sorted(pauses)


def test_while_it_waits_nothing_is_written() -> None:
    world = unknown()
    world.step()
    ended(world, "Failed")
    pod(world, terminated=bad())
    world.settle()
    assert world.said("ModelInspected") == ("False", "InspectFailed")
    assert world.said("Degraded") == ("True", "InspectFailed")
    for _ in range(5):
        world.wait(5)
        assert world.plan().actions == ()


def test_a_shape_edited_by_hand_is_read_anew_and_replaces_nothing() -> None:
    world = unknown()
    world.step()
    pod(world, terminated=good())
    world.settle()
    world.pods = [one for one in world.pods if one.role != INSPECT]
    before = [world.replicas(role) for role in ("prefill", "decode")]
    kept = world.child("ConfigMap", "glm-model")["data"]
    sound = kept["config.json"]
    kept["config.json"] = sound.replace('"num_hidden_layers":61', '"num_hidden_layers":62')
    assert kept["config.json"] != sound
    world.step()
    pod(world, terminated=good())
    for _ in range(3):
        world.run()
        world.step()
        assert [world.replicas(role) for role in ("prefill", "decode")] == before
    assert world.child("ConfigMap", "glm-model")["data"] == {"config.json": sound}


def test_a_status_that_somebody_broke_does_not_stop_it() -> None:
    world = unknown()
    world.step()
    ended(world, "Failed")
    world.settle()
    world.condition("ModelInspected")["lastTransitionTime"] = "yesterday"
    assert world.plan().again_s == SHORTEST_S


def test_a_refused_spec_is_not_read() -> None:
    world = unknown(prefill={"contextParallel": 7})
    world.settle()
    assert not any(ref.kind == "Job" for ref in world.children)
    assert world.said("Admitted") == ("False", "Invalid")


def test_a_model_that_is_none_of_ours_is_refused_by_its_fields() -> None:
    world = unknown()
    world.step()
    config = {"model_type": "llama", "hidden_size": 64}
    pod(world, terminated=Inspected(ok=True, config=config).message())
    world.settle()
    assert world.said("Admitted") == ("False", "Invalid")
    assert "config.json" in world.condition("Admitted")["message"]
    assert world.workloads("decode") == {}


def test_the_config_map_tells_of_which_source_it_is() -> None:
    deployment = deployment_of(unknown())
    kept = inspected_map(deployment, CONFIG)
    assert kept["metadata"]["annotations"][SOURCE] == source_digest(deployment.spec)
    assert after(NOW, 61) == "2026-01-01T00:01:01Z"
