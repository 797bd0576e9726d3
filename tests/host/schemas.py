"""docs/openapi.json: its operations, their parameters, and whether a value matches one of its schemas."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import referencing
import referencing.jsonschema

from .published import ROOT

DOCUMENT = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
PREFIX = "/streamcache"
# References such as #/components/schemas/Bucket are resolved in the whole document.
_ADDRESS = "urn:openapi"
_REGISTRY = referencing.Registry().with_resource(
    _ADDRESS, referencing.Resource(DOCUMENT, referencing.jsonschema.DRAFT202012)
)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path without the prefix, and the operation as documented."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path.removeprefix(PREFIX), operation


def parameters(operation: dict[str, Any]) -> dict[str, tuple[bool, dict[str, Any]]]:
    """The parameters of the query or the body: whether each is required, and its schema."""
    if takes_json(operation):
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        return {name: (name in schema["required"], value) for name, value in schema["properties"].items()}
    return {each["name"]: (each["required"], each["schema"]) for each in operation["parameters"]}


def takes_json(operation: dict[str, Any]) -> bool:
    """Whether the parameters are in a JSON body. A zip is a body without parameters."""
    return "application/json" in operation.get("requestBody", {}).get("content", {})


def longest_body(operation: dict[str, Any]) -> int:
    """The bytes of a JSON body that the document allows."""
    found = re.search(r"longer than ([\d,]+) bytes", operation["responses"]["413"]["description"])
    return int(found[1].replace(",", "")) if found and takes_json(operation) else 0


def problems(value: Any, schema: dict[str, Any]) -> list[str]:
    """Every way in which the value does not match the schema."""
    absolute = json.loads(json.dumps(schema).replace('"$ref": "#/', f'"$ref": "{_ADDRESS}#/'))
    validator = jsonschema.Draft202012Validator(absolute, registry=_REGISTRY)
    return [f"{error.json_path}: {error.message:.200}" for error in validator.iter_errors(value)]
