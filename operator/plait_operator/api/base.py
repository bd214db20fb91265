"""What all sections of the API share, and the names of the API itself."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

GROUP = "plait.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class Section(BaseModel):
    """A part of a spec. Strict: "64" is not 64, and a misspelt field is an error, not a default."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class Facts(BaseModel):
    """A part of a status. Read leniently: an older or newer operator may have written it."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True)
