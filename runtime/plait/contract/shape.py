"""A model's shape, as its HF `config.json` says it: what decides rows, layers and KV contents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.contract.rows import RowBytes, row_bytes
from plait.contract.violation import ContractError, Violation

# Architectures that stock SGLang serves with DeepSeek Sparse Attention (DSA) when `index_topk` is set
# (configs/model_config.py, is_deepseek_dsa).
DSA_ARCHITECTURES = (
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "DeepseekV3ForCausalLMNextN",
    "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration",
    "GlmMoeDsaForCausalLM",
    "GlmMoeDsaForCausalLMNextN",
    "LongcatFlashForCausalLM",
    "LongcatFlashForCausalLMNextN",
)
_ROPE_FIELDS = ("rope_theta", "rope_scaling", "rope_parameters", "rope_interleave", "indexer_rope_interleave")
# Sizes that only the weights have: they are counted by `plait.contract.weights`, and decide no KV.
_WEIGHT_FIELDS = (
    "q_lora_rank",
    "intermediate_size",
    "moe_intermediate_size",
    "first_k_dense_replace",
    "n_routed_experts",
    "n_shared_experts",
)
CONFIG_FIELDS = (
    "architectures",
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "index_topk_freq",
    "index_topk_pattern",
    "cli_factor",
    "max_position_embeddings",
    "num_nextn_predict_layers",
    "dtype",
    "torch_dtype",
    "quantization_config",
    *_ROPE_FIELDS,
    *_WEIGHT_FIELDS,
)
"""Every field of a config.json that a ModelShape is made from: what must be kept of one to make it again."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of one model. Numbers are counts, or values per head or token; fields a model lacks are 0.

    `index_topk_freq` and `cli_factor` above 1, or an `index_topk_pattern` with an S, mean that some layers
    reuse the selection of an earlier one (IndexShare). `rope` is canonical JSON of the rope fields.
    """

    architectures: tuple[str, ...]
    model_type: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    vocab_size: int
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    index_n_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    index_topk_freq: int = 1
    index_topk_pattern: str = ""
    cli_factor: int = 1
    max_position_embeddings: int = 0
    num_nextn_predict_layers: int = 0
    dtype: str = ""
    quantization: str = ""
    rope: str = "{}"
    q_lora_rank: int = 0
    intermediate_size: int = 0
    moe_intermediate_size: int = 0
    first_k_dense_replace: int = 0
    n_routed_experts: int = 0
    n_shared_experts: int = 0

    @classmethod
    def from_path(cls, path: Path | str) -> ModelShape:
        """Read `path`, a config.json or the folder that holds it.

        Raises ContractError naming the file, and every missing or malformed field of it.
        """
        file = Path(path)
        if file.is_dir():
            file = file / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise _unreadable(file, why, "the folder of a model, or its config.json") from error
        except ValueError as error:
            raise _unreadable(file, f"not JSON ({error})", "restore the model's config.json") from error
        return cls.from_config(config, source=str(file))

    @classmethod
    def from_config(cls, config: object, *, source: str = "config.json") -> ModelShape:
        """Build from a HF config, a mapping of its fields; `source` is what errors name.

        Raises ContractError for what is no mapping, and with every missing or malformed field. Sizes of
        sparse attention are needed only where the architecture has it (`is_dsa`).
        """
        if not isinstance(config, Mapping):
            fix = "a model's config.json, which is an object of fields"
            raise ContractError([Violation(source, config, "not a JSON object", fix)])
        reader = _Reader(config, source)
        architectures = reader.architectures()
        dsa = architectures[:1] != () and architectures[0] in DSA_ARCHITECTURES
        dsa = dsa and config.get("index_topk") is not None
        need = 1 if dsa else 0
        shape = cls(
            architectures=architectures,
            model_type=reader.text("model_type"),
            num_hidden_layers=reader.count("num_hidden_layers", least=1),
            hidden_size=reader.count("hidden_size", least=1),
            num_attention_heads=reader.count("num_attention_heads", least=1),
            vocab_size=reader.count("vocab_size", least=1),
            kv_lora_rank=reader.count("kv_lora_rank", least=need),
            qk_rope_head_dim=reader.count("qk_rope_head_dim", least=need),
            qk_nope_head_dim=reader.count("qk_nope_head_dim", least=need),
            v_head_dim=reader.count("v_head_dim", least=need),
            index_n_heads=reader.count("index_n_heads", least=need),
            index_head_dim=reader.count("index_head_dim", least=need),
            index_topk=reader.count("index_topk", least=need),
            index_topk_freq=reader.count("index_topk_freq", least=1, default=1),
            index_topk_pattern=reader.text("index_topk_pattern"),
            cli_factor=reader.count("cli_factor", least=1, default=1),
            max_position_embeddings=reader.count("max_position_embeddings", least=0),
            num_nextn_predict_layers=reader.count("num_nextn_predict_layers", least=0),
            dtype=reader.text("dtype") or reader.text("torch_dtype"),
            quantization=reader.quantization(),
            rope=_canonical({f: config[f] for f in _ROPE_FIELDS if config.get(f) is not None}),
            **{name: reader.count(name, least=0) for name in _WEIGHT_FIELDS},
        )
        if reader.bad:
            raise ContractError(reader.bad)
        return shape

    @property
    def architecture(self) -> str:
        """The class the engine loads."""
        return self.architectures[0]

    @property
    def is_dsa(self) -> bool:
        """Whether stock SGLang serves this model with DeepSeek Sparse Attention."""
        return self.architecture in DSA_ARCHITECTURES and self.index_topk > 0

    @property
    def shares_index(self) -> bool:
        """Whether some layers reuse the selection of an earlier layer (IndexShare)."""
        return self.index_topk_freq > 1 or self.cli_factor > 1 or "S" in self.index_topk_pattern

    def rows(self, kv_dtype: str) -> RowBytes:
        """Row bytes per token and layer. Raises ContractError where the sizes do not divide."""
        return row_bytes(
            kv_dtype,
            kv_lora_rank=self.kv_lora_rank,
            qk_rope_head_dim=self.qk_rope_head_dim,
            index_head_dim=self.index_head_dim,
        )

    def digest(self) -> str:
        """Hex SHA-256 over the fields that decide KV contents: equal shapes agree in any process.

        Left out: what changes no row (length limit, draft layers, weight dtype, sizes of weights alone; the
        KV dtype stands in the contract itself).
        """
        decisive = {
            name: getattr(self, name)
            for name in (
                "architecture",
                "num_hidden_layers",
                "hidden_size",
                "num_attention_heads",
                "vocab_size",
                "kv_lora_rank",
                "qk_rope_head_dim",
                "qk_nope_head_dim",
                "v_head_dim",
                "index_n_heads",
                "index_head_dim",
                "index_topk",
                "index_topk_freq",
                "index_topk_pattern",
                "cli_factor",
                "quantization",
                "rope",
            )
        }
        return hashlib.sha256(_canonical(decisive).encode()).hexdigest()


_MOST = 1 << 40
"""Of what is counted: products of several must fit a float."""


class _Reader:
    """Typed reads of a config's fields; what is wrong is collected in `bad`."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config, self.source = config, source
        self.bad: list[Violation] = []

    def _refuse(self, name: str, reason: str, fix: str) -> None:
        self.bad.append(Violation(f"{self.source}:{name}", self.config.get(name), reason, fix))

    def count(self, name: str, *, least: int, default: int = 0) -> int:
        value = self.config.get(name)
        if value is None and least <= default:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            reason = "is missing" if value is None else f"must be a whole number of at least {least}"
            self._refuse(name, reason, f"write the model's {name}")
            return least
        if value > _MOST:
            self._refuse(name, "is more than any model has of anything", f"write the model's {name}")
            return least
        return value

    def text(self, name: str) -> str:
        value = self.config.get(name)
        if value is None:
            return ""
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return "".join(value)  # index_topk_pattern may come as a list of letters
        if not isinstance(value, str):
            self._refuse(name, "must be a text", f"write the model's {name}")
            return ""
        return value

    def architectures(self) -> tuple[str, ...]:
        value = self.config.get("architectures")
        if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
            self._refuse(
                "architectures", "must be a list with the model's class", "as in the original config"
            )
            return ()
        return tuple(value)

    def quantization(self) -> str:
        value = self.config.get("quantization_config")
        if value is None:
            return ""
        if not isinstance(value, dict):
            self._refuse("quantization_config", "must be an object", "as in the original config")
            return ""
        return str(value.get("quant_method", ""))


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _unreadable(file: Path, reason: str, fix: str) -> ContractError:
    return ContractError([Violation(str(file), None, f"cannot be read: {reason}", fix)])
