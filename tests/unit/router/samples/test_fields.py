"""Router-owned fields: refused by name, and every field of SGLang's request models judged."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from plait.router.errors import RouterError
from plait.router.samples.fields import OWNED_FIELDS, OWNED_HEADERS, OWNED_PREFIXES, refuse_owned

# The client's fields of SGLang 0.5.17, each looked at: none of them says where, in which room or on which
# rank a request runs, or where an engine connects to on a client's word beyond the media it is asked to read.
_JUDGED = """
messages prompt model best_of echo frequency_penalty logit_bias logprobs top_logprobs max_tokens
max_completion_tokens n presence_penalty response_format seed stop stream stream_options suffix
temperature top_p user tools tool_choice parallel_tool_calls return_hidden_states
return_routed_experts routed_experts_start_len return_cached_tokens_details return_prompt_token_ids
return_token_ids return_meta_info reasoning_effort task top_k min_p min_tokens json_schema regex
ebnf repetition_penalty stop_token_ids stop_regex no_stop_trim ignore_eos continue_final_message
skip_special_tokens lora_path session_id session_params separate_reasoning stream_reasoning
chat_template_kwargs max_dynamic_patch min_dynamic_patch use_audio_in_video images_config
custom_logit_processor custom_params input_ids extra_key cache_salt priority custom_labels text
input_embeds image_data video_data audio_data mm_hashes sampling_params return_logprob
logprob_start_len top_logprobs_num token_ids_logprob return_sampling_mask return_text_in_logprobs
return_flat_raw_top_logprobs return_flat_raw_top_logprobs_b64 log_metrics return_indexer_topk
modalities lora_id positional_embed_overrides routing_key conversation_id background
require_reasoning max_thinking_tokens no_logs return_bytes return_entropy received_time
image_max_dynamic_patch video_max_dynamic_patch multi_item_delimiter_indices
"""
CLIENT_FIELDS = set(_JUDGED.split())
MODELS = {
    "entrypoints/openai/protocol.py": ("ChatCompletionRequest", "CompletionRequest"),
    "managers/io_struct.py": ("GenerateReqInput",),
}


def _sglang() -> Path:
    spec = importlib.util.find_spec("sglang")  # finds, imports nothing
    if spec is None or spec.origin is None:
        pytest.skip("sglang is not installed")
    return Path(spec.origin).parent / "srt"


def _model_fields() -> set[str]:
    found: set[str] = set()
    for file, names in MODELS.items():
        tree = ast.parse((_sglang() / file).read_text(encoding="utf-8"))
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        for name in names:
            found |= {
                node.target.id
                for node in classes[name].body
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            }
    return found


def test_every_field_of_the_engines_models_has_been_judged() -> None:
    fields = _model_fields()
    new = sorted(fields - CLIENT_FIELDS - set(OWNED_FIELDS))
    assert new == [], "fields new in this SGLang: the router's (samples/fields.py) or the client's (here)?"
    assert sorted((CLIENT_FIELDS | set(OWNED_FIELDS)) - fields) == [], "fields that no model has any more"


def test_every_header_that_overrides_a_field_has_been_judged() -> None:
    tree = ast.parse((_sglang() / "entrypoints/request_headers.py").read_text(encoding="utf-8"))
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HEADER_OVERRIDES"
    )
    headers = {name: field for name, (field, _) in ast.literal_eval(_without_types(table)).items()}
    assert {h for h, field in headers.items() if field in OWNED_FIELDS} == OWNED_HEADERS - {
        "x-data-parallel-rank"
    }
    assert set(headers.values()) - set(OWNED_FIELDS) == {"conversation_id", "priority"}
    serving = (_sglang() / "entrypoints/openai/serving_base.py").read_text(encoding="utf-8")
    assert 'headers.get("x-data-parallel-rank")' in serving


def _without_types(table: ast.expr) -> ast.expr:
    """The table with `str` and `int` as strings, so that it is a literal."""

    class Names(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Constant:
            return ast.Constant(node.id)

    return Names().visit(table)


@pytest.mark.parametrize("name", [*OWNED_FIELDS, "bootstrap_new", "pd_rebootstrap_prefill_url", "disagg_new"])
def test_an_owned_field_is_refused_by_name(name: str) -> None:
    with pytest.raises(RouterError, match=f"^'{name}' is set ") as caught:
        refuse_owned({"model": "m", name: None})
    assert (caught.value.status, caught.value.param) == (400, name)


def test_other_fields_pass_also_unknown_ones() -> None:
    refuse_owned([*sorted(CLIENT_FIELDS), "ridge", "RID", "brand_new", "bootstrap", ""])


def test_no_field_is_both_the_routers_and_the_clients() -> None:
    assert not CLIENT_FIELDS & set(OWNED_FIELDS)
    assert not [name for name in CLIENT_FIELDS if name.startswith(OWNED_PREFIXES)]
