"""docs/admission.md: `python -m plait_operator.validate.reference > docs/admission.md`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from plait_operator.validate.arguments import OWNED, OWNED_OF_PREFILL, Owned
from plait_operator.validate.environment import OWNED as VARIABLES
from plait_operator.validate.environment import OWNED_PREFIXES
from plait_operator.validate.pod_template import (
    ENGINE,
    OWN_INITS,
    OWN_MOUNTS,
    OWN_VOLUMES,
    REFUSED,
    REMOVABLE,
    ROUTER,
)
from plait_operator.validate.update import IMMUTABLE


def markdown() -> str:
    """The text of the page."""
    head = resources.files(__package__).joinpath("reference_head.txt").read_text(encoding="utf-8")
    fixed = ", ".join(f"`{path}`" for path in IMMUTABLE)
    return "\n".join([head.format(fixed=fixed), *_templates(), *_arguments(), *_variables()]) + "\n"


def _templates() -> Iterator[str]:
    yield "## podTemplate"
    yield ""
    yield "Merged into a role's pods: `metadata.labels`, `metadata.annotations` and `spec`, checked against"
    yield "Kubernetes' own types. `[*]` stands for the main container (`engine` or `router`). Refused:"
    yield ""
    yield "| path | of | why | instead |"
    yield "|---|---|---|---|"
    for row in REFUSED:
        of = {ENGINE: "engines", ROUTER: "routers"}.get(row.main, "both")
        yield f"| `{row.path}` | {of} | {row.reason} | {row.instead} |"
    inits = " and ".join(f"`{name}`" for name in OWN_INITS)
    yield f"| `spec.initContainers` named {inits} | engines | they decide whether the engine starts | |"
    for main, of in ((ENGINE, "engines"), (ROUTER, "routers")):
        volumes = ", ".join(f"`{name}`" for name in OWN_VOLUMES[main])
        mounts = ", ".join(f"`{name}`" for name in OWN_MOUNTS[main])
        yield f"| `spec.volumes` named {volumes} | {of} | they are Plait's | another name |"
        yield f"| a mount at or over {mounts} (main container) | {of} | it hides Plait's | another folder |"
    yield "| labels that selectors go by, `plait.dev/…` | both | the operator goes by them | another key |"
    yield "| the readiness gate `plait.dev/…` | engines | it is the operator's | |"
    free = ", ".join(f"`{name}`" for name in REMOVABLE)
    yield f"| a null, but for {free} | both | it would take away what Plait puts there | leave it out |"
    yield ""


def _arguments() -> Iterator[str]:
    yield "## Engine arguments"
    yield ""
    yield "`args` take the engine's own (a `ServerArgs` field or a flag), where Plait has shown them."
    yield "Refused, since the operator sets them:"
    yield ""
    yield "| argument | its place, or why there is none |"
    yield "|---|---|"
    prefill = {name: Owned(f"{each.place} (decode: `args`)") for name, each in OWNED_OF_PREFILL.items()}
    for name, owned in (OWNED | prefill).items():
        decode = f" (decode: none, {owned.decode})" if owned.decode else ""
        yield f"| `{name}` | {owned.place or owned.why}{decode} |"
    yield ""


def _variables() -> Iterator[str]:
    yield "## Environment"
    yield ""
    yield "Other `PLAIT_*` settings ([settings.md](settings.md)) are free, with a value that they take."
    yield "Variables of the engine that turn on what Plait refuses are refused by value. Refused by name:"
    yield ""
    yield "| variable | why | fix |"
    yield "|---|---|---|"
    for name, (why, fix) in VARIABLES.items():
        yield f"| `{name}` | {why} | {fix} |"
    for prefix in OWNED_PREFIXES:
        yield f"| `{prefix}…` | the operator sets such variables | remove it |"


if __name__ == "__main__":
    print(markdown(), end="")
