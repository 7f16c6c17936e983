"""The API over real sockets: paths, parameters, media types, codes and quirks, against Confluent's published behaviour.

Sources: `schema-registry-api-spec.yaml`, `rest/resources/*.java`, `rest/exceptions/*.java` and `RestApi*Test.java` in
confluentinc/schema-registry; what confluent-kafka-python sends.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from tests.unit.schema_registry.registries import Client, MemoryLog, asking, node, record

from ottla.schema_registry.rest import document
from ottla.schema_registry.rest.api import Api, Bounds
from ottla.schema_registry.rest.application import Cors
from ottla.schema_registry.rest.routes import ROUTES, Router
from ottla.schema_registry.rest.security import Authentication, users_of
from ottla.schema_registry.state.decisions import Registration
from ottla.schema_registry.state.errors import BY_CODE
from ottla.schema_registry.state.replay import State
from ottla.schema_registry.state.schemas import Version

ROOT: Final = Path(__file__).parents[3]
A, A_AND_B = json.dumps(record("R", "a")), json.dumps(record("R", "a", "b"))
B_DEFAULTS: Final = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": "string", "default": ""}]}
)

TAGS_OF_R: Final = [{"schemaEntity": {"entityPath": "R", "entityType": "sr_record"}, "tags": ["PII"]}]


async def test_the_same_schema_again_is_the_same_id_across_subjects_and_is_not_written() -> None:
    log = MemoryLog()
    async with node(log) as registry:
        client = registry.client
        assert await client.register("a-value", A) == 1
        size = len(log.records)
        assert await client.register("a-value", A) == 1
        assert await client.register("a-value", json.dumps(json.loads(A), indent=4)) == 1  # canonical, so the notation does not matter
        assert len(log.records) == size
        assert await client.register("b-value", A) == 1
        assert await client.register("a-value", B_DEFAULTS) == 2
        assert (await client.get("/subjects/a-value/versions")).json == [1, 2]
        assert (await client.get("/schemas/ids/1/subjects")).json == ["a-value", "b-value"]
        assert (await client.get("/schemas/ids/1/versions")).json == [
            {"subject": "a-value", "version": 1},
            {"subject": "b-value", "version": 1},
        ]


async def test_what_is_answered_has_confluents_fields(client: Client) -> None:
    await client.register("a", A, metadata={"properties": {"owner": "ada"}})
    version = (await client.get("/subjects/a/versions/latest")).json
    guid = version["guid"]
    assert version.pop("ts") > 0
    expected = {"guid": guid, "schemaType": "AVRO", "schema": A.replace(" ", ""), "metadata": {"properties": {"owner": "ada"}}}
    assert version == {"subject": "a", "version": 1, "id": 1, **expected}
    by_id = (await client.get("/schemas/ids/1")).json
    assert {key: by_id[key] for key in expected} == expected and "subject" not in by_id
    by_id = (await client.get("/schemas/ids/1?subject=a&fetchMaxId=true")).json
    assert (by_id["subject"], by_id["version"], by_id["maxId"]) == ("a", 1, 1)
    assert (await client.get(f"/schemas/guids/{guid}")).json["schema"] == expected["schema"]
    assert (await client.get(f"/schemas/guids/{guid}/ids")).json == [{"context": ".", "id": 1}]
    assert (await client.get("/schemas/ids/1/schema")).content.decode() == expected["schema"]
    assert (await client.get("/subjects/a/versions/1/schema")).content.decode() == expected["schema"]
    assert (await client.get("/schemas/types")).json == ["JSON", "PROTOBUF", "AVRO"]
    assert (await client.get("/")).json == {} == (await client.post("/", {})).json
    looked_up = (await client.post("/subjects/a", {"schema": A})).json
    assert (looked_up["version"], looked_up["id"], looked_up["guid"]) == (1, 1, guid)  # metadata is that of the latest version


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/schemas/ids/9", None, 404, 40403),
        ("GET", "/schemas/ids/nine", None, 404, 404),
        ("GET", "/schemas/ids/99999999999999", None, 404, 404),
        ("GET", "/schemas/ids/-1", None, 404, 404),
        ("GET", f"/schemas/ids/{'9' * 5_000}", None, 404, 404),
        ("GET", "/schemas/guids/none", None, 404, 40403),
        ("GET", "/schemas/ids/9/subjects", None, 404, 40403),
        ("GET", "/subjects/none/versions", None, 404, 40401),
        ("GET", "/subjects/none/versions/latest", None, 404, 40401),
        ("GET", "/subjects/a/versions/7", None, 404, 40402),
        ("GET", "/subjects/a/versions/0", None, 422, 42202),
        ("GET", "/subjects/a/versions/-2", None, 422, 42202),
        ("GET", "/subjects/a/versions/first", None, 422, 42202),
        ("GET", "/subjects/a/versions/2147483648", None, 422, 42202),
        ("GET", "/subjects/a/metadata?key=k&value=v", None, 404, 40403),
        ("GET", "/subjects?limit=many", None, 400, 400),
        ("POST", "/subjects/none", {"schema": A}, 404, 40401),
        ("POST", "/subjects/a", {"schema": A_AND_B}, 404, 40403),
        ("POST", "/subjects/a", {"schema": "{"}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": A_AND_B}, 409, 409),
        ("POST", "/subjects/a/versions", {"schema": '{"type":"nix"}'}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": "\ud800"}, 422, 42201),
        ("POST", "/subjects/new/versions", {"schema": ""}, 422, 42201),
        ("POST", "/subjects/new/versions", {}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": A, "schemaType": "XML"}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": 7}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": A, "references": [{"name": "x"}]}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": A, "references": [{"name": "x", "subject": "no", "version": 1}]}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": A, "references": [{"name": "x", "subject": "no", "version": 1 << 32}]}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": A, "references": [{"name": "\ud800", "subject": "a", "version": 1}]}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": "\ud800", "schemaTagsToAdd": TAGS_OF_R}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": A, "id": 7}, 422, 42205),
        ("POST", "/subjects/a/versions", {"schema": A, "metadata": {"properties": {"\ud800": "b"}}}, 400, 400),
        ("PUT", "/config/a", {"alias": "\ud800"}, 400, 400),
        ("PUT", "/config", {"defaultMetadata": {"tags": {"a": ["\ud800"]}}}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": A, "metadata": 7}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": B_DEFAULTS, "version": 9}, 422, 42201),
        ("POST", "/subjects/__GLOBAL/versions", {"schema": A}, 422, 42208),
        ("POST", "/subjects/__EMPTY/versions", {"schema": A}, 422, 42208),
        ("POST", "/subjects/:.__GLOBAL:a/versions", {"schema": A}, 422, 42208),
        ("POST", "/subjects/a%0Ab/versions", {"schema": A}, 422, 42208),
        (
            "POST",
            "/subjects/a/versions",
            {"schema": A, "ruleSet": {"domainRules": [{"name": "1", "type": "CEL", "mode": "READ"}]}},
            422,
            42210,
        ),
        (
            "POST",
            "/subjects/a/versions",
            {"schema": A, "ruleSet": {"domainRules": [{"name": "r", "type": "X", "mode": "UPGRADE"}]}},
            422,
            42210,
        ),
        ("PUT", "/config", {"defaultRuleSet": {"domainRules": [{"name": "r", "type": "X", "kind": "NIX"}]}}, 400, 400),
        ("POST", "/compatibility/subjects/a/versions/7", {"schema": A}, 404, 40402),
        ("POST", "/compatibility/subjects/a/versions/x", {"schema": A}, 422, 42202),
        ("POST", "/compatibility/subjects/a/versions", {"schema": "{"}, 422, 42201),
        ("DELETE", "/subjects/none", None, 404, 40401),
        ("DELETE", "/subjects/a?permanent=true", None, 404, 40405),
        ("DELETE", "/subjects/a/versions/1?permanent=true", None, 404, 40407),
        ("DELETE", "/subjects/a/versions/7", None, 404, 40402),
        ("DELETE", "/subjects/none/versions/1", None, 404, 40401),
        ("GET", "/config/a", None, 404, 40408),
        ("PUT", "/config", {"compatibility": "SOMETIMES"}, 422, 42203),
        ("PUT", "/config/__EMPTY", {"compatibility": "FULL"}, 422, 42208),
        ("PUT", "/config/a", {"normalize": "perhaps"}, 400, 400),
        ("DELETE", "/config/a", None, 404, 40401),
        ("GET", "/mode/a", None, 404, 40409),
        ("PUT", "/mode", {"mode": "ASLEEP"}, 422, 42204),
        ("PUT", "/mode/a", {"mode": "FORWARD"}, 422, 42204),
        ("PUT", "/mode/a", {"mode": "IMPORT"}, 422, 42205),
        ("DELETE", "/mode/a", None, 404, 40401),
        ("DELETE", "/contexts/.", None, 422, 42211),
        ("GET", "/associations/resources/-/t", None, 404, 404),
        ("GET", "/exporters", None, 404, 404),
        ("GET", "/dek-registry/v1/keks", None, 404, 404),
        ("GET", "/nowhere", None, 404, 404),
        ("GET", "/contexts/a%3Ab/subjects", None, 400, 400),
        ("DELETE", "/contexts/a%3Ab", None, 400, 400),
        ("PUT", "/subjects", None, 405, 405),
        ("PATCH", "/config", None, 405, 405),
        ("GET", "/compatibility/subjects/a/versions", None, 405, 405),
    ],
)
async def test_an_error_has_confluents_status_and_code(
    client: Client, method: str, path: str, body: object, status: int, code: int
) -> None:
    await client.register("a", A)
    reply = await client.ask(method, path, body, {"Content-Type": "application/json"} if body is not None else None)
    assert (reply.status, reply.json["error_code"]) == (status, code), reply
    assert reply.json["message"] and reply.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
    if status == 405:
        assert reply.headers["allow"]


async def test_an_unreadable_schema_is_said_to_be_invalid_in_confluents_words(client: Client) -> None:
    """confluent-kafka's own tests look for them ("Invalid schema …, details: …" in Confluent's registry), and people's programs may."""
    await client.register("a", A)
    for path in ("/subjects/a", "/subjects/a/versions", "/compatibility/subjects/a/versions"):
        reply = await client.post(path, {"schema": '{"type":"nix"}'})
        assert reply.json["message"].startswith("Invalid schema, details: nix is no type"), reply


async def test_versions_go_on_after_a_soft_delete_and_ids_stay_readable(client: Client) -> None:
    await client.register("a", A)
    await client.register("a", B_DEFAULTS)
    assert (await client.delete("/subjects/a/versions/2")).json == 2
    assert (await client.delete("/subjects/a/versions/2")).code == 40406
    assert (await client.get("/subjects/a/versions")).json == [1]
    assert (await client.get("/subjects/a/versions?deleted=True")).json == [1, 2]
    assert (await client.get("/subjects/a/versions?deletedOnly=true")).json == [2]
    assert (await client.get("/subjects/a/versions?deletedAsNegative=true")).json == [1, -2]
    assert (await client.get("/schemas/ids/2")).status == 200
    assert (await client.get("/subjects/a/versions/2")).code == 40402
    assert (await client.get("/subjects/a/versions/2?deleted=true")).json["deleted"] is True
    assert await client.register("a", B_DEFAULTS) == 2  # the same id, another version, and the older one is gone
    assert (await client.get("/subjects/a/versions?deleted=true")).json == [1, 3]
    assert (await client.delete("/subjects/a")).json == [1, 3]
    assert (await client.delete("/subjects/a")).code == 40404
    assert (await client.get("/subjects")).json == []
    assert (await client.get("/subjects?deleted=true")).json == ["a"] == (await client.get("/subjects?deletedOnly=true")).json
    assert await client.register("a", A) == 1
    assert (await client.get("/subjects/a/versions")).json == [4]
    assert (await client.delete("/subjects/a/versions/-1")).json == 4
    assert (await client.delete("/subjects/a?permanent=true")).json == [3, 4]
    assert (await client.get("/schemas/ids/1")).code == 40403
    assert await client.register("a", A) == 3  # no id is given twice
    assert (await client.get("/subjects/a/versions")).json == [1]


async def test_a_deletion_is_taken_back(client: Client) -> None:
    await client.register("a", A)
    await client.register("a", B_DEFAULTS)
    await client.delete("/subjects/a")
    assert (await client.post("/subjects/a/versions/2/undelete", {})).json == 2
    assert (await client.get("/subjects/a/versions")).json == [2]
    assert (await client.post("/subjects/a/versions/2/undelete", {})).code == 40407
    assert (await client.post("/subjects/a/undelete", {})).json == [1]
    assert (await client.get("/subjects/a/versions")).json == [1, 2]
    assert (await client.post("/subjects/none/undelete", {})).code == 40401


async def test_what_others_refer_to_is_not_deleted(client: Client) -> None:
    await client.register("a", A)
    using = {"type": "record", "name": "U", "fields": [{"name": "r", "type": "R"}]}
    assert await client.register("u", using, references=[{"name": "R", "subject": "a", "version": 1}]) == 2
    assert (await client.get("/subjects/a/versions/1/referencedby")).json == [2]
    assert (await client.delete("/subjects/a/versions/1")).code == 42206
    assert (await client.delete("/subjects/a")).code == 42206
    assert (await client.delete("/subjects/u")).json == [1]
    assert (await client.get("/subjects/a/versions/1/referencedby")).json == []
    assert (await client.get("/subjects/a/versions/1/referencedby?deleted=true")).json == [2]
    assert (await client.delete("/subjects/a")).json == [1]
    assert (await client.delete("/subjects/a?permanent=true")).code == 42206
    assert (await client.delete("/subjects/u?permanent=true")).json == [1]
    assert (await client.delete("/subjects/a?permanent=true")).json == [1]
    found = (await client.get("/subjects/u/versions/1")).code
    assert found == 40401


async def test_a_schema_with_references_is_read_with_them_in_it(client: Client) -> None:
    await client.register(":.c:a", A)
    using = {"type": "record", "name": "U", "fields": [{"name": "r", "type": "R"}]}
    await client.register(":.c:u", using, references=[{"name": "R", "subject": "a", "version": 1}])
    resolved = (await client.get("/contexts/.c/schemas/ids/2?format=resolved")).json
    assert json.loads(resolved["schema"])["fields"][0]["type"]["name"] == "R"
    for name in ("referenceFormat", "reference_format"):
        found = (await client.get(f"/subjects/:.c:u/versions/1?{name}=qualified")).json
        assert found["references"] == [{"name": "R", "subject": ":.c:a", "version": 1}]


async def test_types_that_are_nested_too_deep_by_their_references_are_refused(client: Client) -> None:
    """Each schema may be nested a hundred deep, and all of them together were an Internal Server Error."""
    inner, references = "string", list[dict[str, Any]]()
    schema: dict[str, Any] = {}
    for number in range(6):
        nested: Any = inner
        for level in range(95):
            schema = {"type": "record", "name": f"R{number}_{level}", "fields": [{"name": "f", "type": nested}]}
            nested = schema
        await client.register(f"s{number}", schema, references=references)
        inner, references = schema["name"], [{"name": schema["name"], "subject": f"s{number}", "version": 1}]
    body = {"schema": json.dumps({**schema, "doc": "another"}), "references": [{"name": "R4_94", "subject": "s4", "version": 1}]}
    for reply in (
        await client.get("/subjects/s5/versions/1?format=resolved"),
        await client.get("/subjects/s5/versions/1/diff/1"),
        await client.post("/subjects/s5/versions", body),
        await client.post("/subjects/s5", body),
    ):
        assert reply.code == 42201 and "too deep" in reply.json["message"]


async def test_compatibility_is_asked_of_one_version_or_all_and_says_why(client: Client) -> None:
    checked = "/compatibility/subjects/a/versions"
    assert (await client.post(f"{checked}/latest", {"schema": A})).json == {"is_compatible": True}  # a subject that is not there
    await client.register("a", A)
    assert (await client.post(f"{checked}/latest", {"schema": B_DEFAULTS})).json == {"is_compatible": True}
    assert (await client.post(f"{checked}/latest?verbose=True", {"schema": B_DEFAULTS})).json == {"is_compatible": True, "messages": []}
    assert (await client.post(f"{checked}/1", {"schema": A_AND_B})).json == {"is_compatible": False}
    said = (await client.post(f"{checked}?verbose=true", {"schema": A_AND_B})).json
    assert said["is_compatible"] is False
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in said["messages"][0] and "/fields/1" in said["messages"][0]
    assert "remedy" in said["messages"][0] and "{oldSchemaVersion: 1}" in said["messages"]
    said = (await client.post(f"{checked}?verbose=true", {"schema": "{"})).json
    assert said["is_compatible"] is False and len(said["messages"]) == 1
    await client.put("/config/a", {"compatibility": "NONE"})
    assert (await client.post(f"{checked}/1", {"schema": A_AND_B})).json == {"is_compatible": True}


@pytest.mark.parametrize(
    ("level", "former", "new", "objecting"),
    [
        ("BACKWARD", [A, B_DEFAULTS], A_AND_B, 0),
        ("BACKWARD_TRANSITIVE", [A, B_DEFAULTS], A_AND_B, 1),
        ("FORWARD", [A_AND_B, B_DEFAULTS], A, 0),
        ("FORWARD_TRANSITIVE", [A_AND_B, B_DEFAULTS], A, 1),
        ("FULL", [A, B_DEFAULTS], A_AND_B, 0),
        ("FULL_TRANSITIVE", [A, B_DEFAULTS], A_AND_B, 1),
        ("FULL_TRANSITIVE", [], A, 0),
        ("BACKWARD_TRANSITIVE", ['"int"', '"string"', '"boolean"', '"bytes"'], '"string"', 3),
    ],
)
async def test_levels_choose_how_far_back_is_looked(client: Client, level: str, former: list[str], new: str, objecting: int) -> None:
    """From the latest back, to the first that objects."""
    await client.put("/config", {"compatibility": "NONE"})
    for schema in former:
        await client.register("s", schema)
    await client.put("/config", {"compatibility": level})
    said = (await client.post("/compatibility/subjects/s/versions?verbose=true", {"schema": new})).json
    found = [message for message in said["messages"] if message.startswith("{oldSchemaVersion")]
    assert (said["is_compatible"], found) == ((False, [f"{{oldSchemaVersion: {objecting}}}"]) if objecting else (True, []))


@pytest.mark.parametrize("schema_type", ["AVRO", "JSON", "PROTOBUF"])
@pytest.mark.parametrize("text", [None, "", " \n"])
async def test_nothing_is_no_schema_that_could_be_compatible(client: Client, schema_type: str, text: str | None) -> None:
    """`AbstractSchemaRegistry.isCompatible`: an empty file is one that the compiler of Protobuf takes, and no one may register."""
    body = {"schema": text, "schemaType": schema_type}
    for place in ("versions", "versions/latest"):
        reply = await client.post(f"/compatibility/subjects/new/{place}", body)
        assert (reply.code, reply.json["message"]) == (42201, "Empty schema")
        verbose = await client.post(f"/compatibility/subjects/new/{place}?verbose=true", body)
        assert verbose.json == {"is_compatible": False, "messages": ["Empty schema"]}


@pytest.mark.parametrize("text", ["// nothing", 'syntax = "proto2";'])
async def test_a_protobuf_schema_of_which_nothing_is_left_in_its_canonical_text_is_refused(client: Client, text: str) -> None:
    """It was registered as an empty text, with which no import and no mirror can register it again."""
    body = {"schema": text, "schemaType": "PROTOBUF"}
    for path in ("/subjects/a/versions", "/compatibility/subjects/a/versions"):
        reply = await client.post(f"{path}?normalize=true", body)
        assert (reply.code, reply.json["message"]) == (42201, "Empty schema")
    assert (await client.get("/subjects")).json == []


@pytest.mark.parametrize("ask", ["compatibility", "lookup"])
async def test_others_are_answered_while_a_schema_is_compared_with_many_versions(ask: str) -> None:
    """A subject has hundreds, and each takes milliseconds to be read and compared: the loop has its turn between two."""
    log = MemoryLog()
    async with node(log) as registry:
        await registry.client.put("/config", {"compatibility": "BACKWARD_TRANSITIVE"})
        for count in range(30):
            await registry.client.register("s", record("R", *(f"f{index}" for index in range(count)), default=True))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with node(log, leads=False) as registry:  # it has read none of them yet
        request = Registration("s", text=json.dumps(record("R", "other", default=True)))
        others = asyncio.ensure_future(take_turns())
        if ask == "lookup":
            assert await registry.store.drafts.found(registry.state, request, with_deleted=False) is None
        else:
            assert await registry.store.drafts.check(registry.state, request, registry.state.versions("s")) == []
        others.cancel()
    assert turns >= 29


async def test_only_versions_of_the_same_compatibility_group_are_compared(client: Client) -> None:
    """By a question about one version too; which fields are reserved is a matter of all groups (`isCompatibleWithPrevious`)."""
    await client.put("/config/a", {"compatibilityGroup": "major"})
    await client.register("a", A, metadata={"properties": {"major": "1"}})
    reply = await client.post("/subjects/a/versions", {"schema": A_AND_B, "metadata": {"properties": {"major": "1"}}})
    assert reply.code == 409
    for major, is_compatible in (("1", False), ("2", True)):
        body = {"schema": A_AND_B, "metadata": {"properties": {"major": major}}}
        for version in ("", "/1", "/latest"):
            asked = await client.post(f"/compatibility/subjects/a/versions{version}", body)
            assert asked.json == {"is_compatible": is_compatible}
    await client.register("a", A_AND_B, metadata={"properties": {"major": "2"}})
    found = (await client.get("/subjects/a/metadata?key=major&value=1")).json
    assert found["version"] == 1
    await client.register("a", A_AND_B, metadata={"properties": {"major": "2", "confluent:reserved": "z"}})
    await client.put("/config/a", {"validateFields": True})
    reply = await client.post("/subjects/a/versions", {"schema": A, "metadata": {"properties": {"major": "3"}}})
    assert reply.code == 409 and "reserved field z removed" in reply.json["message"]


async def test_a_dry_run_writes_nothing_and_says_what_would_be(client: Client) -> None:
    path = "/subjects/a/versions?dryRun=true"
    found = (await client.post(path, {"schema": A})).json
    assert (found["id"], found["version"]) == (1, 1)
    assert (await client.get("/subjects?deleted=true")).json == []
    await client.register("a", A)
    assert (await client.post(path, {"schema": A_AND_B})).code == 409
    assert (await client.post(path, {"schema": A})).json["version"] == 1


async def test_force_registers_what_is_incompatible(client: Client) -> None:
    await client.register("a", A)
    assert (await client.post("/subjects/a/versions?force=true", {"schema": A_AND_B})).json["version"] == 2


async def test_two_versions_are_compared_place_by_place(client: Client) -> None:
    await client.register("a", A)
    await client.register("a", B_DEFAULTS)
    changes = (await client.get("/subjects/a/versions/1/diff/latest")).json
    assert [change["kind"] for change in changes] == ["added"] and "b" in changes[0]["path"]
    assert (await client.get("/subjects/a/versions/1/diff/9")).code == 40402
    for least in ("0.5", "0.25"):
        await client.register("n", f'{{"type":"number","minimum":{least}}}', schemaType="JSON")
    (change,) = (await client.get("/subjects/n/versions/1/diff/2")).json
    assert (change["before"], change["after"]) == (0.5, 0.25)


async def test_the_normal_form_is_asked_for_or_configured(client: Client) -> None:
    one = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}],"doc":"d"}'
    other = '{"name":"R","doc":"d","type":"record","fields":[{"type":{"type":"int"},"name":"a"}]}'
    await client.put("/config", {"normalize": True})
    assert (await client.get("/config")).json == {"normalize": True, "compatibilityLevel": "BACKWARD"}
    assert await client.register("a", one) == await client.register("b", other)
    found = await client.post("/subjects/a?normalize=True&deleted=False", {"schema": other})
    assert found.json["version"] == 1


async def test_config_is_put_under_one_name_and_read_under_another(client: Client) -> None:
    assert (await client.get("/config")).json == {"compatibilityLevel": "BACKWARD"}
    assert (await client.put("/config", {"compatibility": "full"})).json == {"compatibility": "FULL"}
    assert (await client.put("/config/a", {"compatibility": "NONE", "alias": "b"})).json == {"alias": "b", "compatibility": "NONE"}
    assert (await client.get("/config/a")).json == {"alias": "b", "compatibilityLevel": "NONE"}
    assert (await client.put("/config/a", {"alias": None})).json == {"compatibility": "NONE"}
    assert (await client.get("/config/c?defaultToGlobal=true")).json == {"compatibilityLevel": "FULL"}
    assert (await client.delete("/config/a")).json == {"compatibilityLevel": "NONE"}
    assert (await client.delete("/config")).json == {"compatibilityLevel": "FULL"}
    assert (await client.get("/config/")).json == {"compatibilityLevel": "BACKWARD"}
    assert (await client.put("/config/:.:", {"compatibility": "NONE"})).status == 200  # the default context is the top
    assert (await client.get("/config")).json == {"compatibilityLevel": "NONE"}
    await client.delete("/config")
    await client.put("/config/:.__GLOBAL:", {"compatibility": "FORWARD"})
    assert (await client.get("/config/x?defaultToGlobal=true")).json == {"compatibilityLevel": "FORWARD"}


async def test_an_alias_stands_for_a_subject(client: Client) -> None:
    await client.register("long-name", A)
    await client.put("/config/short", {"alias": "long-name"})
    assert (await client.get("/subjects/short/versions/latest")).json["subject"] == "long-name"
    assert await client.register("short", B_DEFAULTS) == 2
    assert (await client.get("/subjects")).json == ["long-name"]
    found = (await client.get("/schemas?aliases=true&latestOnly=true")).json
    assert [(version["subject"], version["version"], version["aliases"]) for version in found] == [("long-name", 2, ["short"])]


@pytest.mark.parametrize(
    ("prefix", "listed"),
    [
        ("", [("a", ["one", "two"]), ("b", None)]),
        ("t", [("a", ["two"])]),
        ("b", [("b", None)]),
        (":.c:", [(":.c:a", [":.c:two"])]),
        (":*:", [(":.c:a", [":.c:two"]), ("a", ["one", "two"]), ("b", None)]),
        (":*:tw", [(":.c:a", [":.c:two"]), ("a", ["two"])]),
    ],
)
async def test_aliases_are_listed_that_begin_with_the_prefix(
    client: Client, prefix: str, listed: list[tuple[str, list[str] | None]]
) -> None:
    """`RestApiCompatibilityTest.testGetSchemasWithAliases`, `…AndContextWildcard`; `AbstractSchemaRegistry.getAliases`."""
    for subject in ("a", "b", ":.c:a"):
        await client.register(subject, A)
    for alias in ("one", "two", ":.c:two"):
        await client.put(f"/config/{alias}", {"alias": "a"})
    found = (await client.get(f"/schemas?aliases=true&subjectPrefix={prefix}")).json
    assert [(version["subject"], version.get("aliases")) for version in found] == listed


async def test_defaults_and_overrides_of_the_config_become_part_of_a_schema(client: Client) -> None:
    """A rule without kind and mode transforms what is written and read, as by the defaults of Confluent's `Rule`
    (`RestApiRegisterSchemaTagsTest.testRegisterSchemaTagsIncrementalRuleSetDeprecated`)."""
    rule = {"name": "check", "type": "CEL", "expr": "true"}
    update = {"defaultMetadata": {"properties": {"a": "1", "b": "1"}}, "overrideMetadata": {"properties": {"b": "3"}}}
    await client.put("/config/s", {**update, "overrideRuleSet": {"domainRules": [rule]}})
    await client.register("s", A, metadata={"properties": {"b": "2", "c": "2"}})
    found = (await client.get("/subjects/s/versions/1")).json
    assert found["metadata"] == {"properties": {"a": "1", "b": "3", "c": "2"}}
    assert found["ruleSet"] == {"domainRules": [{**rule, "kind": "TRANSFORM", "mode": "WRITEREAD", "disabled": False}]}
    assert [version["subject"] for version in (await client.get("/schemas?ruleType=CEL")).json] == ["s"]
    assert (await client.get("/schemas?ruleType=JSONATA")).json == []
    again = await client.post("/subjects/s/versions", {"metadata": {"properties": {"c": "5"}}})  # the schema of the latest version
    assert again.json["version"] == 2 and again.json["schema"] == found["schema"]


async def test_the_name_of_a_rule_has_at_most_256_characters(client: Client) -> None:
    """`Rule.NAME_MAX_LENGTH`, since 7.4.9."""
    for length, code in ((256, None), (257, 42210)):
        rule_set = {"domainRules": [{"name": "r" * length, "type": "ENCRYPT"}]}
        assert (await client.post("/subjects/a/versions", {"schema": A, "ruleSet": rule_set})).code == code


async def test_a_number_may_be_sent_as_a_text(client: Client) -> None:
    """As Jackson reads an `Integer` of `SchemaReference` and `RegisterSchemaRequest`; shell scripts send such."""
    await client.register("a", record("A", "x"))
    refers = {"schema": A_AND_B, "references": [{"name": "A", "subject": "a", "version": "1"}]}
    assert (await client.post("/subjects/b/versions", refers)).json["references"][0]["version"] == 1
    await client.put("/mode/c", {"mode": "IMPORT"})
    assert (await client.post("/subjects/c/versions", {"schema": A, "id": "70", "version": "3"})).json["id"] == 70
    assert (await client.get("/subjects/c/versions")).json == [3]
    for wrong in ("", "one", "4294967297", "-2", True, 1.5):
        refers["references"] = [{"name": "A", "subject": "a", "version": wrong}]
        assert (await client.post("/subjects/b/versions", refers)).code == 400


@pytest.mark.parametrize(("given", "answered"), [("false", False), ("TRUE", True), (True, True), (None, False)])
async def test_a_rule_is_disabled_by_true_and_not_by_a_text_that_says_false(client: Client, given: object, answered: bool) -> None:
    """`Rule.java` has a boolean, which Jackson reads from a text too."""
    rule = {"name": "hide", "type": "ENCRYPT", "disabled": given}
    reply = await client.post("/subjects/a/versions", {"schema": A, "ruleSet": {"domainRules": [rule]}})
    assert reply.json["ruleSet"]["domainRules"][0]["disabled"] is answered
    refused = await client.post("/subjects/b/versions", {"schema": A, "ruleSet": {"domainRules": [rule | {"disabled": "no"}]}})
    assert refused.code == 400


async def test_a_schema_that_is_registered_already_is_found_although_it_would_be_refused_as_a_new_one(client: Client) -> None:
    """Confluent looks it up before it validates (`registerOrForward`): it came by IMPORT, or when defaults were not looked at."""
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string", "default": None}]})
    assert (await client.put("/mode/s", {"mode": "IMPORT"})).status == 200
    assert await client.register("s", text, id=5, version=1) == 5
    await client.delete("/mode/s")
    assert await client.register("s", text) == 5
    assert (await client.post("/subjects/other/versions", {"schema": text})).code == 42201


async def test_new_schemas_are_not_validated_where_a_config_says_so(client: Client) -> None:
    """`testRegisterSchemaWithInvalidDefault`: with validateNewSchemas=false a default need not fit its field."""
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string", "default": None}]})
    await client.put("/config", {"validateNewSchemas": False})
    assert (await client.post("/compatibility/subjects/s/versions", {"schema": text})).json == {"is_compatible": True}
    assert await client.register("s", text) == 1
    await client.put("/config/t", {"validateNewSchemas": True})
    for path in ("/subjects/t/versions", "/compatibility/subjects/t/versions"):
        assert (await client.post(path, {"schema": text})).code == 42201


async def test_a_path_that_names_the_default_context_lists_no_other(client: Client) -> None:
    """`testContextPaths`."""
    for subject in ("a", ":.c:b"):
        await client.register(subject, A)
    assert (await client.get("/subjects")).json == [":.c:b", "a"]
    for path in ("/contexts/:.:/subjects", "/contexts/./subjects"):
        assert (await client.get(path)).json == ["a"]


async def test_the_version_becomes_part_of_the_metadata_when_it_is_asked_for(client: Client) -> None:
    first = (await client.post("/subjects/s/versions", {"schema": A, "version": -1})).json
    assert first["metadata"] == {"properties": {"confluent:version": "1"}}
    second = (await client.post("/subjects/s/versions", {"schema": B_DEFAULTS})).json
    assert second["metadata"] == {"properties": {"confluent:version": "2"}}
    assert (await client.post("/subjects/s", {"schema": A})).json["version"] == 1


async def test_a_version_that_is_asked_for_is_found_by_its_number_or_is_the_latest(client: Client) -> None:
    """`testConfluentVersion`: only one of two schemas needs the property; -1 is the latest version, whatever an earlier one has."""

    async def registered(**more: Any) -> int:
        return int((await client.post("/subjects/s/versions", {"schema": A, **more})).json["version"])

    def numbered(number: int) -> dict[str, Any]:
        return {"metadata": {"properties": {"confluent:version": str(number)}}}

    assert await registered() == await registered(version=-1) == 1
    assert await registered(version=2) == await registered(version=-1) == 2
    for number in (1, 2):
        assert (await client.post("/subjects/s", {"schema": A, **numbered(number)})).json["version"] == number
    await client.delete("/subjects/s/versions/1")
    assert await registered(metadata={}) == 2
    assert await registered(metadata={"properties": {"k": "v"}}) == 3
    assert await registered(version=-1) == 4


async def test_tags_are_written_into_the_schema_as_another_version(client: Client) -> None:
    await client.register("s", A)
    tags = [{"schemaEntity": {"entityPath": "R.a", "entityType": "sr_field"}, "tags": ["PII"]}]
    dotted = [{"schemaEntity": {"entityPath": ".R.a", "entityType": "sr_field"}, "tags": ["PII"]}]  # `getNormalizedPath`
    tagged = (await client.post("/subjects/s/versions/latest/tags", {"tagsToAdd": dotted})).json
    assert tagged["version"] == 2 and "confluent:tags" in tagged["schema"]
    assert tagged["metadata"] == {"properties": {"confluent:version": "2"}}
    found = (await client.get("/subjects/s/versions/2?findTags=PII")).json
    assert found["schemaTags"] == tags
    assert "schemaTags" not in (await client.get("/schemas/ids/2?findTags=OTHER")).json
    kept = (await client.post("/subjects/s/versions", {"schema": B_DEFAULTS, "propagateSchemaTags": True})).json
    assert json.loads(kept["schema"])["fields"][0]["confluent:tags"] == ["PII"]
    more = [{"schemaEntity": {"entityPath": "R.a", "entityType": "sr_field"}, "tags": ["Z", "A"]}]
    asked = {"schema": B_DEFAULTS, "schemaTagsToAdd": more, "propagateSchemaTags": True}
    kept = (await client.post("/subjects/s/versions", asked)).json
    assert json.loads(kept["schema"])["fields"][0]["confluent:tags"] == ["Z", "A", "PII"]
    found = (await client.get(f"/subjects/s/versions/{kept['version']}?findTags=PII")).json
    assert found["schemaTags"] == [{**more[0], "tags": ["Z", "A", "PII"]}]
    copy = (await client.post("/subjects/s/versions", {"propagateSchemaTags": True, "metadata": {"properties": {"k": "v"}}})).json
    assert copy["schema"] == kept["schema"]
    await client.register("p", kept["schema"])
    plain = (await client.post("/subjects/p/versions", {"schema": A, "propagateSchemaTags": True})).json
    assert plain["version"] == 2 and "metadata" not in plain  # no number is asked for
    wrong = [{"schemaEntity": {"entityPath": "R.z", "entityType": "sr_field"}, "tags": ["PII"]}]
    assert (await client.post("/subjects/s/versions/1/tags", {"tagsToAdd": wrong})).code == 42201
    assert (await client.post("/subjects/s/versions/1/tags", {"tagsToAdd": [7]})).code == 400


async def test_tags_with_paths_that_are_too_long_together_are_refused(client: Client) -> None:
    """Definitions that nothing refers to cost nothing until their tags are asked for."""
    nested: Any = {"type": "object", "properties": {f"p{index}": {} for index in range(3_000)}}
    for _ in range(50):
        nested = {"type": "object", "properties": {"n" * 1_000: nested}}
    await client.register("j", {"type": "object", "definitions": {"d": nested}}, schemaType="JSON")
    assert (await client.get("/subjects/j/versions/1?findTags=*")).code == 42201
    body = {"schema": '{"type":"object"}', "schemaType": "JSON", "propagateSchemaTags": True}
    assert (await client.post("/subjects/j/versions", body)).code == 42201


async def test_modes(client: Client) -> None:
    assert (await client.get("/mode")).json == {"mode": "READWRITE"}
    await client.register("a", A)
    assert (await client.put("/mode", {"mode": "READONLY"})).json == {"mode": "READONLY"}
    for reply in (
        await client.post("/subjects/a/versions", {"schema": B_DEFAULTS}),
        await client.delete("/subjects/a"),
        await client.delete("/subjects/a/versions/1"),
        await client.put("/config/a", {"compatibility": "NONE"}),
    ):
        assert reply.code == 42205
    assert await client.register("a", A) == 1  # it is there, so nothing is written
    assert (await client.put("/mode/b", {"mode": "READWRITE"})).status == 200
    assert await client.register("b", B_DEFAULTS) == 2
    assert (await client.delete("/mode")).json == {"mode": "READONLY"}
    assert (await client.delete("/mode/b")).json == {"mode": "READWRITE"}
    assert (await client.get("/mode/b?defaultToGlobal=true")).json == {"mode": "READWRITE"}


async def test_a_registry_that_is_read_only_for_all_is_so_for_subjects_with_a_mode_of_their_own(client: Client) -> None:
    """`KafkaSchemaRegistry.getModeInScope` and `getMode`: READONLY_OVERRIDE of the default context comes before all others."""
    await client.put("/mode/a", {"mode": "READWRITE"})
    await client.put("/mode", {"mode": "READONLY"})
    assert await client.register("a", A) == 1
    await client.put("/mode", {"mode": "READONLY_OVERRIDE"})
    assert (await client.post("/subjects/a/versions", {"schema": B_DEFAULTS})).code == 42205
    assert (await client.delete("/subjects/a")).code == 42205
    assert [(await client.get(f"/mode{path}")).json["mode"] for path in ("/a", "/b", "")] == ["READONLY_OVERRIDE"] * 3
    await client.put("/mode", {"mode": "READWRITE"})
    assert (await client.get("/mode/a")).json["mode"] == "READWRITE"
    assert (await client.get("/mode/b")).code == 40409


async def test_ids_and_versions_are_given_in_import_mode_only(client: Client) -> None:
    assert (await client.put("/mode/:.lake:", {"mode": "IMPORT"})).status == 200
    body = {"schema": A, "id": 100, "version": 5}
    assert (await client.post("/subjects/:.lake:a/versions", body)).json["id"] == 100
    assert (await client.get("/contexts/lake/subjects/a/versions")).json == [5]
    assert (await client.post("/subjects/:.lake:b/versions", {"schema": A_AND_B, "id": 100})).code == 42205  # it is another schema's
    assert (await client.post("/subjects/:.lake:b/versions", {"schema": A})).code == 42205  # no id
    assert (await client.put("/mode/:.lake:", {"mode": "READWRITE"})).status == 200
    assert await client.register(":.lake:c", B_DEFAULTS) == 101
    assert (await client.put("/mode/:.lake:", {"mode": "IMPORT"})).code == 42205
    assert (await client.put("/mode/:.lake:?force=true", {"mode": "IMPORT"})).status == 200
    assert (await client.delete("/mode/:.lake:?recursive=true")).json == {"mode": "IMPORT"}


async def test_no_version_is_given_that_no_other_node_can_read() -> None:
    """Behind the highest number there was one more, which the leader had and every replay took for no record of a registry."""
    log = MemoryLog()
    async with node(log) as leader:
        client = leader.client
        await client.put("/mode/a", {"mode": "IMPORT"})
        assert (await client.post("/subjects/a/versions", {"schema": A, "id": 1, "version": 2**31 - 1})).status == 200
        await client.put("/mode/a", {"mode": "READWRITE"})
        assert (await client.post("/subjects/a/versions", {"schema": B_DEFAULTS})).code == 42205
        assert await client.register("a", A) == 1
    async with node(log, leads=False) as reader:
        assert reader.state.unreadable_count == 0


async def test_modes_are_left_alone_where_they_may_not_be_changed() -> None:
    """`mode.mutability=false`."""
    async with asking(may_change_mode=False) as client:
        assert (await client.put("/mode", {"mode": "READONLY"})).code == 42205


async def test_an_empty_subject_is_refused_where_the_setting_says_so() -> None:
    """`RestApiRejectEmptySubjectTest`: `:.:` is the way to one, as no path has an empty part; `*` is refused with it."""
    async with asking(may_be_empty=False) as client:
        for subject in (":.:", "*", ":.c:"):
            reply = await client.post(f"/subjects/{subject}/versions", {"schema": A})
            assert (reply.status, reply.code) == (422, 42208)
            assert subject in reply.json["message"]
        assert await client.register("normal", A) == 1
    async with asking() as client:
        assert await client.register(":.:", A) == await client.register("*", A) == 1


async def test_a_page_of_schemas_looks_at_no_version_behind_it(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads all of a registry asks for one page after the other, and each cost as much as all."""
    for number in range(5):
        await client.register(f"s{number}", A)
    looked_at: list[str] = []
    versions = State.versions

    def looked(state: State, subject: str) -> tuple[Version, ...]:
        looked_at.append(subject)
        return versions(state, subject)

    monkeypatch.setattr(State, "versions", looked)
    page = (await client.get("/schemas?offset=1&limit=2")).json
    assert [version["subject"] for version in page] == ["s1", "s2"] and looked_at == ["s0", "s1", "s2"]
    assert (await client.get(f"/schemas?offset={10**20}")).json == []


async def test_each_context_has_ids_of_its_own(client: Client) -> None:
    assert await client.register("a", A) == 1
    assert await client.register(":.c:a", B_DEFAULTS) == 1
    assert (await client.post("/contexts/.c/subjects/b/versions", {"schema": A})).json["id"] == 2
    assert (await client.get("/contexts")).json == [".", ".c"]
    assert (await client.get("/contexts?contextPrefix=.c")).json == [".c"]
    assert (await client.get("/subjects")).json == [":.c:a", ":.c:b", "a"]  # `RestApiContextTest`
    assert (await client.get("/subjects?subjectPrefix=")).json == ["a"]
    assert (await client.get("/subjects?subjectPrefix=:*:a")).json == [":.c:a", "a"]
    assert [version["subject"] for version in (await client.get("/schemas?subjectPrefix=:*:")).json] == [":.c:a", ":.c:b", "a"]
    assert (await client.get("/contexts/c/subjects")).json == [":.c:a", ":.c:b"]
    assert (await client.get("/contexts/:.c:/schemas/ids/1")).json["schema"] == B_DEFAULTS.replace(" ", "")
    assert (await client.get("/schemas/ids/1?subject=:.c:")).json["version"] == 1
    assert (await client.get("/schemas/ids/2?subject=b")).json["subject"] == ":.c:b"  # found in another context
    assert (await client.get("/subjects/b/versions/1")).json["subject"] == ":.c:b"
    assert (await client.post("/subjects/b", {"schema": A})).json["subject"] == ":.c:b"
    assert (await client.get("/subjects/:.:a/versions/1")).json["subject"] == "a"
    assert (await client.delete("/contexts/.c")).code == 42211
    await client.put("/contexts/c/config", {"compatibility": "NONE"})
    assert (await client.get("/config/:.c:")).json == {"compatibilityLevel": "NONE"}
    assert (await client.get("/config/:.c:a?defaultToGlobal=true")).json == {"compatibilityLevel": "NONE"}
    assert (await client.get("/config")).json == {"compatibilityLevel": "BACKWARD"}
    for subject in (":.c:a", ":.c:b"):
        await client.delete(f"/subjects/{subject}")
        await client.delete(f"/subjects/{subject}?permanent=true")
    assert (await client.delete("/contexts/.c")).status == 204
    assert (await client.get("/contexts")).json == ["."]
    assert (await client.get("/contexts/a:b/subjects")).status == 400


async def test_pages() -> None:
    async with asking(bounds=Bounds(schemas=(2, 4))) as client:
        for name in "abcde":
            await client.register(name, A)
        assert (await client.get("/subjects?offset=1&limit=2")).json == ["b", "c"]
        assert (await client.get("/subjects?offset=4&limit=-1")).json == ["e"]
        assert len((await client.get("/schemas")).json) == 2  # by setting
        assert len((await client.get("/schemas?limit=3")).json) == 3
        assert len((await client.get("/schemas?limit=100")).json) == 2  # more than is allowed is as if nothing were said


@pytest.mark.parametrize(
    "path", ["/subjects/a%2Fb/versions/1", "//subjects//a%2fb/versions/1/", "/contexts/./subjects/a%2Fb/versions/latest"]
)
async def test_a_name_may_have_a_slash_and_slashes_too_many_do_not_matter(client: Client, path: str) -> None:
    """kafbat/kafka-ui issue 809 asks for `/config/`."""
    await client.register("a%2Fb", A)
    assert (await client.get(path)).json["subject"] == "a/b"


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        (None, "application/vnd.schemaregistry.v1+json"),
        ("*/*", "application/vnd.schemaregistry.v1+json"),
        ("application/json", "application/json"),
        ("text/html, application/vnd.schemaregistry+json;q=0.9", "application/vnd.schemaregistry+json"),
        (
            "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json",
            "application/vnd.schemaregistry.v1+json",
        ),
        ("text/html", None),
    ],
)
async def test_media_types_of_answers(client: Client, accept: str | None, answered: str | None) -> None:
    reply = await client.ask("GET", "/subjects", headers={} if accept is None else {"Accept": accept})
    if answered is None:
        assert (reply.status, reply.code) == (406, 406)
    else:
        assert reply.headers["content-type"] == answered


async def test_media_types_and_forms_of_bodies(client: Client) -> None:
    body = json.dumps({"schema": A, "aNewField": {"that": "clients send"}}).encode()
    path = "/subjects/a/versions"
    for media_type in ("application/json; charset=utf-8", "application/vnd.schemaregistry+json", "application/octet-stream", ""):
        assert (await client.ask("POST", path, body, {"Content-Type": media_type} if media_type else {})).status == 200
    assert (await client.ask("POST", path, body, {"Content-Type": "text/xml"})).code == 415
    assert (await client.ask("POST", path, gzip.compress(body), {"Content-Encoding": "gzip"})).status == 200
    assert (await client.ask("POST", path, body, {"Content-Encoding": "br"})).code == 415
    assert (await client.ask("POST", path, body, {"Content-Encoding": "gzip"})).code == 400
    assert (await client.ask("POST", path, gzip.compress(body)[:-9], {"Content-Encoding": "gzip"})).code == 400
    for broken in (b"", b"{", b"[]", b"7", b'"\xff"', b"[" * 100_000):
        assert (await client.ask("POST", path, broken)).code == 400, broken[:9]
    bomb = gzip.compress(b" " * 40_000_000)
    assert (await client.ask("POST", path, bomb, {"Content-Encoding": "gzip"})).code == 42209


async def test_an_id_is_answered_for_ever_and_compressed_where_that_helps(client: Client) -> None:
    await client.register("a", record("R", *(f"field_{number}" for number in range(100))))
    assert "immutable" in (await client.get("/schemas/ids/1/schema")).headers["cache-control"]
    reply = await client.get("/schemas/ids/1")
    unchanged = await client.get("/schemas/ids/1", If_None_Match=reply.headers["etag"])
    assert (unchanged.status, unchanged.content) == (304, b"")
    assert "content-length" not in unchanged.headers  # a cache would take it for that of the answer that it has (RFC 9110, 8.6)
    compressed = await client.get("/schemas/ids/1", Accept_Encoding="gzip, deflate")
    assert compressed.headers["content-encoding"] == "gzip" and gzip.decompress(compressed.content) == reply.content
    head = await client.ask("HEAD", "/schemas/ids/1")
    assert (head.status, head.content, head.headers["content-length"]) == (200, b"", reply.headers["content-length"])
    assert (await client.ask("HEAD", "/schemas/ids/7")).status == 404
    assert "cache-control" not in (await client.get("/schemas/ids/1?fetchMaxId=true")).headers


@pytest.mark.parametrize("query", [b"", b"?fetchMaxId=false"])
async def test_an_answer_is_kept_until_the_schema_is_gone_also_for_javas_client(query: bytes) -> None:
    """That says of each id that it needs no highest one (`RestService.getId`)."""
    async with node(MemoryLog()) as registry:
        client = registry.client
        await client.register("a", A)
        asked = b"GET /schemas/ids/1" + query + b" HTTP/1.1\r\nHost: x\r\n"
        answers = await client.raw((asked + b"\r\n") * 3 + asked + b"Connection: close\r\n\r\n")
        assert answers.count(b"HTTP/1.1 200 OK") == 4 and registry.application.counts.cached == 2
        await client.delete("/subjects/a")
        await client.delete("/subjects/a?permanent=true")
        assert (await client.get("/schemas/ids/1")).code == 40403


async def test_a_kept_answer_does_not_hide_that_a_schema_was_deleted_or_is_there_again() -> None:
    async with node(MemoryLog()) as registry:
        client = registry.client
        await client.register("a", A)
        asked = b"GET /schemas/ids/1 HTTP/1.1\r\nHost: x\r\n"
        for expected, method, path in ((0, "DELETE", "/subjects/a"), (4, "POST", "/subjects/a/undelete"), (0, "GET", "/")):
            answers = await client.raw((asked + b"\r\n") * 3 + asked + b"Connection: close\r\n\r\n")
            assert answers.count(b'"deleted":true') == expected and answers.count(b"HTTP/1.1 200 OK") == 4
            assert (await client.ask(method, path, {})).status == 200
        assert registry.application.counts.cached == 6


async def test_a_cache_between_asks_again_whether_a_schema_was_deleted(client: Client) -> None:
    """A browser showed for a year that it was not, as the answer was marked as immutable."""
    await client.register("a", A)
    guid = (await client.get("/schemas/ids/1")).json["guid"]
    for path in ("/schemas/ids/1", f"/schemas/guids/{guid}"):
        reply = await client.get(path)
        assert reply.headers["cache-control"] == "public, no-cache" and "deleted" not in reply.json
        assert (await client.get(path, If_None_Match=reply.headers["etag"])).status == 304
        assert (await client.delete("/subjects/a")).status == 200
        changed = await client.get(path, If_None_Match=reply.headers["etag"])
        assert (changed.status, changed.json["deleted"]) == (200, True)
        assert (await client.post("/subjects/a/undelete", {})).status == 200


async def test_a_kept_answer_for_an_alias_does_not_outlive_a_change_of_the_alias() -> None:
    """In another context the id is another schema; in a proxy the answer would be kept for a year."""
    async with node(MemoryLog()) as registry:
        client = registry.client
        await client.register("a", A)
        await client.register(":.other:a", '"int"')
        asked = b"GET /schemas/ids/1?subject=short HTTP/1.1\r\nHost: x\r\n"
        for alias, expected in (("a", b"record"), (":.other:a", b"int")):
            await client.put("/config/short", {"alias": alias})
            answers = await client.raw((asked + b"\r\n") * 3 + asked + b"Connection: close\r\n\r\n")
            assert answers.count(expected) == 4 and b"immutable" not in answers
        assert registry.application.counts.cached == 4


async def test_a_kept_answer_for_a_subject_that_does_not_have_the_id_ends_when_it_has_it() -> None:
    """Until then the id is looked for in the default context, and in others, in which it is another schema."""
    async with node(MemoryLog()) as registry:
        client = registry.client
        asked = b"GET /schemas/ids/1?subject=b HTTP/1.1\r\nHost: x\r\n"
        for subject, schema, expected in (("a", A, b"record"), (":.other:b", '"int"', b"int"), ("b", A, b"record")):
            await client.register(subject, schema)
            answers = await client.raw((asked + b"\r\n") * 3 + asked + b"Connection: close\r\n\r\n")
            assert answers.count(expected) == 4, subject
        assert registry.application.counts.cached == 2  # of the subject's own


async def test_javas_clients_that_end_at_an_unknown_field_are_answered_as_by_confluents_7() -> None:
    """`SchemaString`, `Schema` and `RegisterSchemaResponse` ignore no unknown field up to v5.5.15. Newer clients get all."""
    log = MemoryLog()
    old, new = {"User-Agent": "Java/1.8.0_202"}, {"User-Agent": "Java/17.0.2", "Confluent-Accept-Unknown-Properties": "true"}
    async with node(log) as leader, node(log, leads=False) as follower:
        follower.leadership._leader = leader.leadership.leader
        for client, subject in ((leader.client, "a"), (follower.client, "b")):  # which forwards the registration
            path, version = f"/subjects/{subject}", {"subject": subject, "version": 1, "id": 1, "schema": A.replace(" ", "")}
            assert (await client.ask("POST", f"{path}/versions", {"schema": A}, old)).json == {"id": 1}
            assert (await client.ask("POST", path, {"schema": A}, old)).json == version
            assert (await client.ask("GET", f"{path}/versions/latest", headers=old)).json == version
            assert (await client.ask("GET", "/schemas?latestOnly=true", headers=old)).json[-1] == version
            for query in ("?fetchMaxId=false", f"?subject={subject}"):
                assert (await client.ask("GET", f"/schemas/ids/1{query}", headers=old)).json == {"schema": version["schema"]}
            for headers in (new, {}):
                assert (await client.ask("POST", f"{path}/versions", {"schema": A}, headers)).json.keys() >= {"guid", "version", "schema"}
            assert (await client.ask("POST", f"{path}/versions?normalize=true", {"schema": A}, old)).json.keys() >= {"guid", "version"}
        asked = ["GET /schemas/ids/1 HTTP/1.1\r\nHost: x\r\n" + "".join(f"{name}: {of[name]}\r\n" for name in of) for of in (old, new) * 2]
        answers = await leader.client.raw(("\r\n".join(asked) + "Connection: close\r\n\r\n").encode())
        assert answers.count(b"HTTP/1.1 200 OK") == 4 and answers.count(b'"guid"') == 2 and leader.application.counts.cached == 1


async def test_a_follower_answers_what_it_has_and_waits_for_what_was_written() -> None:
    log = MemoryLog()
    async with node(log) as leader, node(log, leads=False) as follower:
        written = await leader.client.post("/subjects/a/versions", {"schema": A})
        found = await follower.client.get("/subjects/a/versions/1", X_Registry_Offset=written.headers["x-registry-offset"])
        assert found.json["id"] == 1
        assert await follower.client.register("a", A) == 1  # it is there, so no leader is needed
        assert (await follower.client.post("/subjects/a/versions", {"schema": B_DEFAULTS})).code == 50004
        assert (await follower.client.post("/subjects/a/versions?dryRun=true", {"schema": A_AND_B})).code == 409


async def test_a_follower_that_lags_refuses_nothing_that_the_leader_takes() -> None:
    """A config and a schema that others refer to were written through another node a moment ago. Method: a follower that reads nothing."""
    log = MemoryLog()
    async with node(log) as leader, node(log, leads=False, timeout_seconds=0.2) as follower:
        await leader.client.register("a", A)
        await follower.store.wait_for_ever(len(log.records))
        follower.leadership._leader = leader.leadership.leader
        follower.topic.may_read.clear()
        await leader.client.put("/config/a", {"compatibility": "NONE"})
        assert await follower.client.register("a", '"int"') == 2
        await leader.client.register("type", {"type": "enum", "name": "E", "symbols": ["X"]})
        refers = {"type": "record", "name": "R", "fields": [{"name": "e", "type": "E"}]}
        references = [{"name": "E", "subject": "type", "version": 1}]
        assert await follower.client.register("r", refers, references=references) == 4
        assert follower.state.versions("r") == ()
        refused = await follower.client.post("/subjects/a/versions", {"schema": "no schema"})
        assert (refused.status, refused.code) == (422, 42201)


async def test_a_follower_has_read_what_it_forwarded() -> None:
    log = MemoryLog()
    async with node(log) as leader, node(log, leads=False) as follower:
        follower.leadership._leader = leader.leadership.leader
        for number in range(5):
            schema_id = await follower.client.register(f"s{number}", record(f"R{number}", "a"))
            assert (await follower.client.get(f"/schemas/ids/{schema_id}")).status == 200
            assert (await follower.client.delete(f"/subjects/s{number}")).json == [1]
            assert (await follower.client.get(f"/subjects/s{number}/versions/1")).code == 40401
        await follower.client.register(":.c:s", '"int"')
        for query in ("", "?permanent=true"):
            assert (await follower.client.delete(f"/contexts/c/subjects/s{query}")).json == [1]
        follower.topic.may_read.clear()
        asyncio.get_running_loop().call_later(0.2, follower.topic.may_read.set)
        assert (await follower.client.delete("/contexts/c")).status == 204  # the one answer without a body
        assert (await follower.client.get("/contexts")).json == ["."]


async def test_what_every_answer_has_a_forwarded_one_has_too() -> None:
    """`response.http.headers.config` and `access.control.allow.origin`: a page could not read what it was answered for its write."""
    log = MemoryLog()
    options: dict[str, Any] = {"cors": Cors(("https://ui.example",)), "headers": {"x-frame-options": "DENY"}}
    async with node(log, **options) as leader, node(log, leads=False, **options) as follower:
        follower.leadership._leader = leader.leadership.leader
        reply = await follower.client.post("/subjects/a/versions", {"schema": A}, Origin="https://ui.example")
        assert reply.json["id"] == 1 and reply.headers["x-registry-offset"]
        assert reply.headers["access-control-allow-origin"] == "https://ui.example" and reply.headers["x-frame-options"] == "DENY"


async def test_an_offset_that_does_not_come_is_waited_for_in_vain() -> None:
    async with asking(timeout_seconds=0.2) as client:
        assert (await client.get("/subjects", X_Registry_Offset="1000")).code == 50002


async def test_the_code_of_an_incompatible_schema_can_be_that_of_newer_releases() -> None:
    """`incompatible.schema.error.code`; 409 until December 2025, 40901 since."""
    async with asking(incompatible_code=40901) as client:
        await client.register("a", A)
        reply = await client.post("/subjects/a/versions", {"schema": A_AND_B})
        assert (reply.status, reply.code) == (409, 40901)


async def test_browsers_of_allowed_origins_may_read_and_others_may_not() -> None:
    async with asking(cors=Cors(("https://ui.example",), ("GET", "PUT")), headers={"x-frame-options": "DENY"}) as client:
        allowed = await client.get("/subjects", Origin="https://ui.example")
        assert allowed.headers["access-control-allow-origin"] == "https://ui.example" and allowed.headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in (await client.get("/subjects", Origin="https://elsewhere")).headers
        asked = {"Origin": "https://ui.example", "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type"}
        preflight = await client.ask("OPTIONS", "/config/a", headers=asked)
        assert preflight.headers["access-control-allow-methods"] == "GET,PUT"
        assert preflight.headers["access-control-allow-headers"] == "content-type"
        assert "PUT" in preflight.headers["allow"]


async def test_who_is_known_reads_and_who_has_the_role_writes(tmp_path: Path) -> None:
    file = tmp_path / "users.properties"
    file.write_text("ada: MD5:5f4dcc3b5aa765d61d8327deb882cf99, developer\nbob: secret, reader\neve: x, stranger\n")
    authentication = Authentication(users_of(file), frozenset({"reader", "developer"}), frozenset({"developer"}), "Schemas")
    ada, bob, eve = "Basic YWRhOnBhc3N3b3Jk", "Basic Ym9iOnNlY3JldA==", "Basic ZXZlOng="
    async with asking(authentication=authentication) as client:
        for authorization in (None, "Basic !", "Bearer abc", "Basic " + "YWRhOndyb25n", "Basic bm9ib2R5Ong="):
            reply = await client.ask("GET", "/subjects", headers={} if authorization is None else {"Authorization": authorization})
            assert reply.code == 401 and reply.headers["www-authenticate"] == 'Basic realm="Schemas"'
        assert (await client.get("/subjects", Authorization=eve)).code == 403
        for _ in range(2):
            assert (await client.get("/subjects", Authorization=bob)).status == 200
        assert (await client.post("/subjects/a/versions", {"schema": A}, Authorization=bob)).code == 403
        assert (await client.post("/subjects/a/versions", {"schema": A}, Authorization=ada)).status == 200
        assert (await client.post("/compatibility/subjects/a/versions", {"schema": A}, Authorization=bob)).status == 200
        for _ in range(2):
            assert (await client.get("/schemas/ids/1")).code == 401  # nothing is kept for everybody


def test_every_route_has_a_method_and_every_error_its_class() -> None:
    assert {route.name for route in ROUTES} <= {name for name in dir(Api) if not name.startswith("_")}
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    router = Router()
    for route in ROUTES:
        path = route.path.replace("{", "").replace("}", "") or "/"
        assert router.find(path).route(route.method) is route
        assert route.path == "/" or router.find(f"/contexts/.c{path}").route(route.method) is route
    assert all(error("").code == code for code, error in BY_CODE.items())


def test_every_error_of_the_page_is_one_that_is_answered() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "services/ottla/schema_registry").rglob("*.py"))
    assert [error.__name__ for error in BY_CODE.values() if not re.search(rf"(?<!class ){error.__name__}\(", sources)] == []


async def test_openapi_and_the_page_are_made_of_the_table(client: Client) -> None:
    found = (await client.get("/openapi.json")).json
    assert found == json.loads(json.dumps(document.openapi("1.0")))
    assert set(found["paths"]) == {route.path for route in ROUTES}
    assert found["paths"]["/subjects/{subject}/versions"]["post"]["responses"]["422"]["description"].startswith("error_code 42201")
    page = ROOT / "docs" / "schema-registry.md"
    assert document.page(page.read_text(encoding="utf-8")) == page.read_text(encoding="utf-8")


async def test_metadata_of_the_server(client: Client) -> None:
    found = (await client.get("/v1/metadata/id")).json
    assert found["scope"]["clusters"] == {"kafka-cluster": "cluster-1", "schema-registry-cluster": "group-1"}
    assert (await client.get("/v1/metadata/version")).json["version"] == "1.0"
    assert (await client.get("/v1/metadata/deployment")).status == 200


async def test_an_answer_that_was_overtaken_by_a_deletion_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read before the id was given up and kept after that: the id's next schema would have been answered with the former one."""
    async with node(MemoryLog()) as registry:
        client, drafts, path = registry.client, registry.store.drafts, "/schemas/ids/1?format=resolved"
        parsed_before, reads, may_go_on = drafts.parsed, asyncio.Event(), asyncio.Event()

        async def slow(*arguments: Any) -> Any:
            found = await parsed_before(*arguments)
            reads.set()
            await may_go_on.wait()
            return found

        async def kept_alive(path: str) -> int:
            head = f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\nGET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
            return int((await client.raw(head.encode())).split()[1])

        assert await client.register("a", A) == 1
        monkeypatch.setattr(drafts, "parsed", slow)
        asking = asyncio.ensure_future(client.get(path))
        await reads.wait()
        monkeypatch.setattr(drafts, "parsed", parsed_before)
        assert (await client.delete("/subjects/a")).status == (await client.delete("/subjects/a?permanent=true")).status == 200
        assert await kept_alive(path) == 404
        may_go_on.set()
        assert (await asking).status == 200
        assert await kept_alive(path) == 404


async def test_a_reference_to_the_latest_version_stays_one_to_what_was_the_latest_then(client: Client) -> None:
    """Confluent stores the number (`AbstractSchemaProvider.resolveReferences`), so an id means the same for ever."""
    await client.register("r", A)
    text = json.dumps({"type": "record", "name": "S", "fields": [{"name": "r", "type": "R"}]})
    latest, first = ([{"name": "R", "subject": "r", "version": number}] for number in (-1, 1))
    assert await client.register("s", text, references=latest) == 2
    assert await client.register("s", text, references=first) == 2
    assert (await client.get("/schemas/ids/2")).json["references"] == first
    assert (await client.post("/subjects/s", {"schema": text, "references": latest})).json["version"] == 1
    await client.register("r", B_DEFAULTS)
    assert "b" not in (await client.get("/schemas/ids/2?format=resolved")).json["schema"].partition("fields")[2]
    assert (await client.get("/subjects/r/versions/1/referencedby")).json == [2]
    assert (await client.delete("/subjects/r/versions/1")).code == 42206
    assert await client.register("s", text, references=latest) == 4


async def test_a_new_schema_does_not_refer_to_a_version_that_was_deleted(client: Client) -> None:
    """As with Confluent's since 7.9 (`testDeleteAndCreateWithDanglingReference`); what is there already is found all the same."""
    await client.register("r", A)
    await client.register("r", B_DEFAULTS)
    text = json.dumps({"type": "record", "name": "S", "fields": [{"name": "r", "type": "R"}]})
    body: dict[str, object] = {"schema": text, "references": [{"name": "R", "subject": "r", "version": 1}]}
    assert (await client.post("/subjects/s/versions", body)).status == 200
    assert (await client.delete("/subjects/s")).status == (await client.delete("/subjects/r/versions/1")).status == 200
    for path in ("/subjects/s/versions", "/subjects/t/versions", "/compatibility/subjects/s/versions"):
        assert (await client.post(path, body)).code == 42201, path
    assert (await client.post("/subjects/s?deleted=true", body)).json["version"] == 1
    await client.put("/mode/t", {"mode": "IMPORT"})
    assert (await client.post("/subjects/t/versions", {**body, "id": 3, "version": 1})).status == 200


async def test_a_version_that_refers_to_the_latest_of_another_subject_is_undeleted() -> None:
    async with node(MemoryLog()) as registry:
        client = registry.client
        await client.register("r", A)
        text = json.dumps({"type": "record", "name": "S", "fields": [{"name": "r", "type": "R"}]})
        await client.register("s", text, references=[{"name": "R", "subject": "r", "version": -1}])
        assert (await client.delete("/subjects/s")).json == [1]
        assert (await client.post("/subjects/s/undelete", {})).json == [1]
