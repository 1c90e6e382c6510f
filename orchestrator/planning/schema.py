"""JSON schemas of sweep and branch files, by which an editor completes and checks them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from orchestrator.planning.branch_file import BranchFile
from orchestrator.planning.sweep import Repeats, Sweep
from orchestrator.planning.sweep_file import OURS
from orchestrator.planning.workload_parts import Scale

SCHEMA_FILES = {"sweep": "sweep.schema.json", "branch": "branch.schema.json"}
"""Kind of file -> what the file with its schema is called."""


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON schema of the files of a kind: `sweep` or `branch`."""
    if kind == "branch":
        schema = _schema(BranchFile)
    else:
        schema = _schema(Sweep)
        _accept_short_forms(schema)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **schema, "title": f"A {kind} file of orchestrate"}


class _AsWritten(GenerateJsonSchema):
    """Keys in the order in which the models and their examples have them."""

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        return value


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True, schema_generator=_AsWritten)
    plain: dict[str, Any] = _with_plain_text(schema)
    return plain


def _accept_short_forms(schema: dict[str, Any]) -> None:
    """Adds what people may write in place of the full form, and takes away what is not theirs to
    write. The validators of `Sweep` and `Recipe` that run before the others accept the same."""
    keys, parts = schema["properties"], schema["$defs"]
    for name in OURS:
        del keys[name]
    for name in ("TrunkBranches", "Rates", "Length", "Spread"):
        del parts[name]
    workloads = keys["workloads"]
    workloads["items"] = {"anyOf": [workloads["items"], {"$ref": "#/$defs/ProgramWorkload"}]}
    schema["required"].remove("workloads")
    schema["anyOf"] = [{"required": ["workloads"]}, {"required": ["scale"]}]
    keys["scale"] = {"$ref": "#/$defs/Scale"}
    parts["Scale"] = _schema(Scale)
    parts["Scale"]["properties"]["workload"] |= workloads["items"]
    keys["recipes"]["items"] = {"anyOf": [{"type": "string"}, keys["recipes"]["items"]]}
    parts["Recipe"]["required"] = ["name"]
    parts["Repeats"] = _schema(Repeats)
    count, about = keys["repeats"], {"description", "examples", "default"}
    first = {name: count.pop(name) for name in [*count] if name not in about}
    count["anyOf"] = [first, {"$ref": "#/$defs/Repeats"}]


def _with_plain_text(part: Any) -> Any:
    """Without the titles that pydantic makes of names, and without the line ends of docstrings."""
    if isinstance(part, list):
        return [_with_plain_text(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        name: " ".join(value.split()) if name == "description" and isinstance(value, str)
        # Below `properties`, a title is a key of the file.
        else {key: _with_plain_text(each) for key, each in value.items()} if name == "properties"
        else _with_plain_text(value)
        for name, value in part.items()
        if name != "title"
    }  # fmt: skip
