"""Any text survives the tokenizer, learning is repeatable, and the chat template knows three roles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.model.sample import sample_text
from plait.model.shape import VOCAB_SIZE, TinyShape
from plait.model.tokenizer import ASSISTANT, END, SPECIAL, SYSTEM, USER, make_tokenizer
from plait.model.write import write_tiny

TOKENIZER = make_tokenizer()


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_have_the_first_ids_and_the_rest_fits_the_embedding() -> None:
    assert [TOKENIZER.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3]
    assert TOKENIZER.get_vocab_size() == VOCAB_SIZE
    assert TOKENIZER.encode(f"a{USER}b").ids[1] == 2


def test_the_shipped_text_is_some_thousand_tokens() -> None:
    assert 3000 <= len(TOKENIZER.encode(sample_text()).ids) <= 6000


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_learning_gives_the_same_merges_in_every_process(hash_seed: str) -> None:
    code = "from plait.model.tokenizer import make_tokenizer as m; print(m().to_str())"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == TOKENIZER.to_str()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> object:
    from transformers import AutoTokenizer

    folder: Path = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny(folder, TinyShape())
    return AutoTokenizer.from_pretrained(folder)


def _chat(loaded: object, *messages: dict[str, object], prompt: bool = True) -> str:
    return loaded.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt)  # type: ignore[attr-defined,no-any-return]


def test_a_chat_is_written_with_its_roles(loaded: object) -> None:
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]}
    assert _chat(loaded, system, user) == f"{SYSTEM}Be brief.{USER}Hi!{ASSISTANT}"
    answer = {"role": "assistant", "content": "Yes."}
    assert _chat(loaded, user, answer, prompt=False) == f"{USER}Hi!{ASSISTANT}Yes.{END}"


def test_an_unknown_role_is_refused(loaded: object) -> None:
    with pytest.raises(jinja2.TemplateError, match="role tool is not known"):
        _chat(loaded, {"role": "tool", "content": "x"})
