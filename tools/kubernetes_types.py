"""Write what the operator's validator knows of Kubernetes' own types, from the models of the Python client.

`.venv/bin/python tools/kubernetes_types.py > operator/plait_operator/validate/kubernetes_types.json`

Per type: field -> kind, with `!` where the field is required. Kinds: str, int, float, bool, any, int|str,
quantity, list[KIND], map[KIND], or another type's name.
"""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import kubernetes.client as client

ROOTS = ("V1PodSpec", "V1ResourceRequirements", "V2MetricSpec", "V2HorizontalPodAutoscalerBehavior")
# The client has plain texts for these.
QUANTITIES = {
    ("V1ResourceRequirements", "limits"): "map[quantity]",
    ("V1ResourceRequirements", "requests"): "map[quantity]",
    ("V1VolumeResourceRequirements", "limits"): "map[quantity]",
    ("V1VolumeResourceRequirements", "requests"): "map[quantity]",
    ("V1PodSpec", "overhead"): "map[quantity]",
    ("V1EmptyDirVolumeSource", "sizeLimit"): "quantity",
    ("V1ResourceFieldSelector", "divisor"): "quantity",
    ("V2MetricTarget", "averageValue"): "quantity",
    ("V2MetricTarget", "value"): "quantity",
    ("V2HPAScalingRules", "tolerance"): "quantity",
}
_PLAIN = {"str": "str", "int": "int", "float": "float", "bool": "bool", "datetime": "str"}


def kind(name: str, annotation: Any) -> str:
    """The kind of a field that the client declares as `name`."""
    if match := re.fullmatch(r"(List|Dict)\[(?:str, )?(.+)\]", name):
        return f"{'list' if match[1] == 'List' else 'map'}[{kind(match[2], None)}]"
    if name in _PLAIN:
        return _PLAIN[name]
    if name != "object":
        return name
    inner = {str(part) for part in get_args(annotation)}
    return (
        "int|str" if any("int" in part for part in inner) and any("str" in part for part in inner) else "any"
    )


def main() -> None:
    """Print the JSON."""
    types: dict[str, dict[str, str]] = {}
    todo = list(ROOTS)
    while todo:
        name = todo.pop()
        if name in types:
            continue
        model = getattr(client, name)
        types[name] = {}
        for attribute, declared in model.openapi_types.items():
            field = model.attribute_map[attribute]
            about = model.model_fields.get(attribute) or next(
                f for f in model.model_fields.values() if f.serialization_alias == field
            )
            told = QUANTITIES.get((name, field)) or kind(declared, about.annotation)
            types[name][field] = told + ("!" if about.is_required() else "")
            todo += [part for part in re.findall(r"\w+", told) if re.match(r"(Core)?V\d", part)]
    lines = [f"{json.dumps(name)}: {json.dumps(types[name], sort_keys=True)}" for name in sorted(types)]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
