"""Schemas: whether a value is as docs/openapi.json says. A word of JSON Schema that is not known here is an error."""

import json
from collections.abc import Iterator
from typing import Any

from .published import ROOT

DOCUMENT = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
PREFIX = "/streamcache"

TYPES = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
KNOWN = {"type", "properties", "required", "additionalProperties", "items", "enum", "minimum", "maximum", "$ref"}
KNOWN |= {"description", "maxLength", "maxItems", "minItems", "default", "format"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path without the prefix, and what the document says of it."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path.removeprefix(PREFIX), operation


def parameters(operation: dict[str, Any]) -> dict[str, tuple[bool, dict[str, Any]]]:
    """Of the query or the body: whether each is required, and its schema."""
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        return {name: (name in schema["required"], value) for name, value in schema["properties"].items()}
    return {each["name"]: (each["required"], each["schema"]) for each in operation["parameters"]}


def problems(value: Any, schema: dict[str, Any], document: dict[str, Any], place: str = "$") -> Iterator[str]:
    """Everything in which the value differs from the schema."""
    unknown = set(schema) - KNOWN
    assert not unknown, f"the checker does not know {unknown}"
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        yield from problems(value, document["components"]["schemas"][name], document, place)
        return
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(TYPES[name](value) for name in types):
        yield f"{place}: {value!r:.80} is no {' or '.join(types)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r:.80} is none of {schema['enum']}"
    if type(value) in (int, float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{place}: {value} is out of range"
    if isinstance(value, (list, str)) and len(value) > schema.get("maxItems", schema.get("maxLength", len(value))):
        yield f"{place}: is too long"
    if isinstance(value, list) and len(value) < schema.get("minItems", 0):
        yield f"{place}: is too short"
    if isinstance(value, list):
        for number, item in enumerate(value if "items" in schema else ()):
            yield from problems(item, schema["items"], document, f"{place}[{number}]")
    if isinstance(value, dict):
        yield from _members(value, schema, document, place)


def _members(value: dict[str, Any], schema: dict[str, Any], document: dict[str, Any], place: str) -> Iterator[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    yield from (f"{place}.{name}: is missing" for name in schema.get("required", ()) if name not in value)
    for name, item in value.items():
        if name in known:
            yield from problems(item, known[name], document, f"{place}.{name}")
        elif others is False:
            yield f"{place}.{name}: is not in the schema"
        elif isinstance(others, dict):
            yield from problems(item, others, document, f"{place}.{name}")
