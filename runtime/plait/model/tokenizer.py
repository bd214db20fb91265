"""A byte-level BPE tokenizer learned from the text that ships with the package, and a chat template.

Byte level means that any text encodes and decodes to itself; 512 entries keep the tiny model's embedding
small. Learning is deterministic: the same text gives the same merges.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from plait.model.sample import sample_text
from plait.model.shape import VOCAB_SIZE

END = "<|endoftext|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL = (END, SYSTEM, USER, ASSISTANT)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role not in ['system', 'user', 'assistant'] -%}"
    "{{ raise_exception('role ' ~ message.role ~ ' is not known: use system, user or assistant') }}"
    "{%- endif -%}"
    "<|{{ message.role }}|>"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for part in message.content -%}{{ part.text }}{%- endfor -%}{%- endif -%}"
    "{%- if message.role == 'assistant' -%}" + END + "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}" + ASSISTANT + "{%- endif -%}"
)


def make_tokenizer() -> Tokenizer:
    """A tokenizer of exactly `VOCAB_SIZE` entries: ids 0..3 are the special tokens, 0 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([sample_text()], trainer)
    size = tokenizer.get_vocab_size()
    if size != VOCAB_SIZE:
        raise ValueError(f"tokenizer has {size} entries, needs {VOCAB_SIZE}: the sample text is too short")
    return tokenizer


def tokenizer_config_json(context: int) -> dict[str, Any]:
    """`tokenizer_config.json` as a dict ready for `json.dump`; `context`: longest sequence in tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "bos_token": END,
        "eos_token": END,
        "pad_token": END,
        "extra_special_tokens": [SYSTEM, USER, ASSISTANT],
        "chat_template": CHAT_TEMPLATE,
    }
