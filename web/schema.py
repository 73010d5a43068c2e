"""Describes requests and responses as JSON Schema, generated from the types that parse and
serialize them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from katz_graph.formats.shipped import Template
from katz_graph.planner.report.document import PLAN
from katz_graph.planner.written_step import WrittenStep
from katz_graph.web.events import JOB_EVENT
from katz_graph.web.http.answers import (
    CheckedWorkflow,
    CountedTexts,
    FilePage,
    MovedFiles,
    OpenedWorkflow,
    OthersThere,
    PackList,
    PlannedWorkflow,
)
from katz_graph.web.http.bodies import (
    CancelBody,
    FilesBody,
    ForgetBody,
    FreeBody,
    InterruptBody,
    MoveBody,
    PlanBody,
    PresenceBody,
    PromptBody,
    TokensBody,
    UnfoldBody,
)
from katz_graph.web.live.frames import SERVER_FRAME
from katz_graph.web.live.katz_channel import REQUEST
from katz_graph.web.live.report import REPORT

Mode = Literal["validation", "serialization"]

READ: dict[str, TypeAdapter[Any]] = {
    body.__name__: TypeAdapter(body)
    for body in (
        PromptBody,
        PlanBody,
        TokensBody,
        UnfoldBody,
        ForgetBody,
        InterruptBody,
        FreeBody,
        CancelBody,
        FilesBody,
        MoveBody,
        PresenceBody,
    )
} | {"ClientFrame": REQUEST}
WRITTEN: dict[str, TypeAdapter[Any]] = {
    "OpenedWorkflow": TypeAdapter(OpenedWorkflow),
    "CheckedWorkflow": TypeAdapter(CheckedWorkflow),
    "PlannedWorkflow": TypeAdapter(PlannedWorkflow),
    "CountedTexts": TypeAdapter(CountedTexts),
    "WrittenStep": TypeAdapter(WrittenStep),
    "FilePage": TypeAdapter(FilePage),
    "MovedFiles": TypeAdapter(MovedFiles),
    "PackList": TypeAdapter(PackList),
    "OthersThere": TypeAdapter(OthersThere),
    "Templates": TypeAdapter(list[Template]),
    "JobReport": REPORT,
    "ServerFrame": SERVER_FRAME,
    "JobEvent": JOB_EVENT,
    "Plan": PLAN,
}


class _Schema(GenerateJsonSchema):
    """Requires all serialized fields, including fields with a default, except fields that are
    omitted when empty.
    """

    def field_is_required(self, field: Any, total: bool) -> bool:
        written = self.mode == "serialization" and "serialization_exclude_if" not in field
        return written or super().field_is_required(field, total)


def schema() -> dict[str, Any]:
    """Returns one JSON Schema (2020-12) whose properties are request bodies, responses, frames of
    the native channel, plan and report, by name.
    """
    inputs: list[tuple[str, Mode, TypeAdapter[Any]]] = [
        *((name, "validation", adapter) for name, adapter in READ.items()),
        *((name, "serialization", adapter) for name, adapter in WRITTEN.items()),
    ]
    found, shared = TypeAdapter.json_schemas(
        inputs,
        title="Katz Graph",
        description="The messages between katz serve and its clients.",
        schema_generator=_Schema,
    )
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        **{key: shared[key] for key in ("title", "description")},
        "type": "object",
        "properties": {name: described for (name, _), described in found.items()},
        "$defs": shared["$defs"],
    }
