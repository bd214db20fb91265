"""The contract as the operator hands it to a pod: one JSON file, which the preflight compares with itself."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from plait.contract.kv import GroupContract, WireContract
from plait.contract.layouts import Layout, Split
from plait.contract.violation import ContractError, Violation

CONTRACT_FILE = "contract.json"
"""Key of the ConfigMap, and so the file's name where it is mounted."""


class ContractFile(BaseModel):
    """What this engine is expected to be.

    `wire`: fields of the wire contract. `group`: of a prefill engine, the fields that the group contract has
    beside wire and versions; None for decode, whose ranks are no group. The hashes are those of both
    contracts, 64 hex digits. `plait_version`: ANY_VERSION where the runtime is not the operator's own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["prefill", "decode"]
    wire: dict[str, Any]
    wire_hash: str
    engine_version: str
    plait_version: str
    group: dict[str, Any] | None = None
    group_hash: str = ""

    @classmethod
    def of(cls, contract: GroupContract, *, role: Literal["prefill", "decode"]) -> Self:
        """For the pods of `role` in the stack whose prefill groups have this contract."""
        told = {
            "role": role,
            "wire": contract.wire.to_dict(),
            "wire_hash": contract.wire.hash,
            "engine_version": contract.engine_version,
            "plait_version": contract.plait_version,
        }
        if role == "prefill":
            told["group"] = {"ranks": contract.ranks, "split": contract.split, "layout": contract.layout}
            told["group_hash"] = contract.hash
        return cls.model_validate(told)

    def wire_contract(self) -> WireContract:
        """The wire contract. Raises ContractError when fields are missing or of no use to this version."""
        return WireContract.from_dict(self.wire)

    def group_contract(self) -> GroupContract | None:
        """The group contract, None for decode. Raises ContractError as above."""
        if self.group is None:
            return None
        try:
            told = {**self.group, "split": Split(self.group["split"]), "layout": Layout(self.group["layout"])}
            return GroupContract(
                wire=self.wire_contract(),
                engine_version=self.engine_version,
                plait_version=self.plait_version,
                **told,
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ContractError):
                raise
            reason = f"is no group contract of this version ({error})"
            fix = "run the operator and the runtime in one version of Plait"
            raise ContractError([Violation("group", self.group, reason, fix)]) from error
