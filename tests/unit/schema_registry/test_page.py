"""The page at /ui: what it is served with, and what a person reads in it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
from tests.unit.schema_registry.registries import Client, asking, record

from ottla.schema_registry.rest.routes import Router
from ottla.schema_registry.rest.security import Authentication, users_of
from ottla.serving.pages import pages_of

NODE: Final = shutil.which("node")
# What only a machine with more than Python can show: `make test` and its like ask for no more.
needs_node: Final = pytest.mark.skipif(NODE is None, reason="node is not here: the page's scripts are not run")
READER: Final = Path(__file__).with_name("page_reader.mjs")
PAGES: Final = pages_of("ottla.schema_registry.rest")
FIRST, SECOND = (
    json.dumps(record("R", "a")),
    json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": "string", "default": "<b>"}]}
    ),
)


async def test_each_file_is_served_with_its_type_and_a_policy_that_lets_nothing_else_run(client: Client) -> None:
    for name, kind in {"": "text/html", "index.html": "text/html", "style.css": "text/css", "components.js": "text/javascript"}.items():
        answer = await client.get(f"/ui/{name}")
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await client.get(f"/ui/{name}", If_None_Match=answer.headers["etag"])
        assert (again.status, again.content) == (304, b"")
    moved = await client.get("/ui")
    assert (moved.status, moved.headers["location"]) == (308, "ui/")
    assert [(await client.get(f"/ui/{name}")).status for name in ("none.css", "../server.py", "%2e%2e/api.py")] == [404] * 3
    assert (await client.post("/ui/", {})).status == 405


async def test_the_page_is_for_those_who_may_read(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("ada: secret, readers\n", encoding="utf-8")
    guard = Authentication(users_of(file), frozenset(["readers"]), frozenset(), "SchemaRegistry")
    async with asking(authentication=guard) as client:
        refused = await client.get("/ui/")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, 'Basic realm="SchemaRegistry"')
        credentials = {"Authorization": "Basic " + base64.b64encode(b"ada:secret").decode()}
        assert (await client.get("/ui/", **credentials)).status == 200


def test_nothing_is_put_in_as_html_and_nothing_stands_in_the_page_itself() -> None:
    page = PAGES[""].body.decode()
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]* src=)", page)
    for name in ("components.js", "registry.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\.style\b", PAGES[name].body.decode())
    named = set(re.findall(r'(?:href|src)="([\w.]+)"', page)) | {
        found for name in PAGES if name.endswith(".js") for found in re.findall(r'from "\./([\w.]+)"', PAGES[name].body.decode())
    }
    assert named == {"style.css", "registry.js", "components.js"} and named <= PAGES.keys()


def test_the_page_asks_for_paths_that_there_are() -> None:
    script = PAGES["registry.js"].body.decode()
    asked = {"/" + found for found in re.findall(r'"\.\./([\w/.]+)"', script)}
    for words in re.findall(r"path\(([^()]*)\)", script):
        asked.add("/" + "/".join(word.strip().strip('"') for word in words.split(",")))
    asked.discard("/...parts")
    assert len(asked) >= 10
    for path in asked:
        Router().find(path)


def test_colours_can_be_told_apart() -> None:
    """4.5 to 1 for text (WCAG 2.2, 1.4.3), light and dark, on every ground that it stands on."""
    style = files("ottla.serving").joinpath("web", "style.css").read_text(encoding="utf-8")

    def luminance(colour: str) -> float:
        channels = [int(colour[start : start + 2], 16) / 255 for start in (0, 2, 4)]
        red, green, blue = (channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    schemes = [dict(re.findall(r"--(\w+): #([0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)]
    assert len(schemes) == 2
    for scheme in schemes:
        grounds = ["ground", "raised", "added", "removed", "changed"]
        for text, ground in [("text", ground) for ground in grounds] + [
            (name, ground) for name in ("quiet", "accent", "good", "bad") for ground in ("ground", "raised")
        ]:
            lighter, darker = sorted((luminance(scheme[text]), luminance(scheme[ground])), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, ground)


async def read(client: Client, folder: Path, steps: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """What stands in the page at first and after each step."""
    for name, page in PAGES.items():
        if name:
            (folder / name).write_bytes(page.body)
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(str(NODE), str(READER), str(folder), f"http://127.0.0.1:{client.port}", json.dumps(steps)), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(120):
        told, _ = await process.communicate()
    assert process.returncode == 0
    found: list[dict[str, Any]] = json.loads(told)
    return found


@needs_node
async def test_a_person_finds_a_subject_its_versions_their_difference_and_whether_a_schema_fits(client: Client, tmp_path: Path) -> None:
    await client.register("clicks-value", FIRST)
    await client.register("clicks-value", SECOND)
    await client.register("a%2Fb%20%3Ci%3E-value", FIRST)
    steps = [
        ("search", "CLICK"),
        ("go", "#/subjects/clicks-value"),
        ("go", "#/subjects/clicks-value/versions/1"),
        ("go", "#/subjects/clicks-value/diff"),
        ("choose", ["to", "1"]),
        ("go", "#/subjects/clicks-value/check"),
        ("write", ["schema", FIRST.replace("string", "int")]),
        ("submit", ""),
        ("search", "2"),
        ("go", "#/ids/1"),
        ("go", "#/subjects/a%2Fb%20%3Ci%3E-value"),
        ("go", "#/subjects/none"),
    ]
    first, searched, latest, old, difference, same, form, _, checked, number, by_id, odd, none = await read(client, tmp_path, steps)
    assert (first["list"], first["count"]) == (["a/b <i>-value", "clicks-value"], "2 subjects")
    assert "Compatibility BACKWARD" in first["content"]
    assert searched["list"] == ["clicks-value"]
    assert latest["content"].startswith("clicks-value Versions Differences Compatibility 2 1 Version 2 of 2 Id 2")
    assert latest["title"] == "clicks-value · Schema registry"
    assert '"default": "<b>"' in latest["content"]
    assert "Version 1 of 2 Id 1" in old["content"]
    assert re.search(r"What Where Before After added \S*b", difference["content"])
    assert same["hash"].endswith("/diff/1/1")
    assert "Nothing that has a meaning differs." in same["content"]
    assert "Level BACKWARD Mode READWRITE" in form["content"]
    assert "Not compatible:" in checked["content"]
    assert number["list"][0] == "the id 2"
    assert "a/b <i>-value 1" in by_id["content"] and "clicks-value 1" in by_id["content"]
    assert odd["content"].startswith("a/b <i>-value ")
    assert "Subject 'none' not found" in none["content"]


@needs_node
async def test_the_keyboard_leads_to_the_search_through_the_list_and_back(client: Client, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        await client.register(name, FIRST)
    steps = [*(("press", key) for key in ("/", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowUp")), ("search", "c"), ("press", "Escape")]
    told = await read(client, tmp_path, steps)
    assert [step["focus"] for step in told[2:5]] == ["a", "b", "a"]
    assert [step["focus"] for step in (told[1], told[5])] == ["", ""], "the search"
    assert [step["list"] for step in told[-2:]] == [["c"], ["a", "b", "c"]]


@needs_node
async def test_a_schema_is_shown_and_checked_with_all_the_digits_that_it_has(client: Client, tmp_path: Path) -> None:
    """A script's number has 53 bits: the highest default of a long was another one in the page, which no long can have."""
    field = {"name": "a", "type": "long", "default": 2**63 - 1}
    await client.put("/config", {"compatibility": "NONE"})
    text = json.dumps({"type": "record", "name": "R", "fields": [field], "doc": '\\ "{[:, ', "empty": [], "none": {}})
    await client.register("s", text)
    _, shown, _, checked = await read(client, tmp_path, [("go", "#/subjects/s"), ("go", "#/subjects/s/check"), ("submit", "")])
    there = (await client.get("/subjects/s/versions/1/schema")).content.decode()
    written = json.dumps(json.loads(there), indent=2)
    assert shown["content"].endswith(re.sub(r"\s+", " ", written))
    assert "Compatible." in checked["content"]


@needs_node
async def test_an_id_and_a_reference_lead_to_the_schema_of_their_context(client: Client, tmp_path: Path) -> None:
    """They led to the default context, in which the id is another schema and the subject another one."""
    refers = {"schema": '{"type": "array", "items": "R"}', "references": [{"name": "R", "subject": "base", "version": 1}]}
    await client.register("base", '"int"')
    await client.register(":.other:base", FIRST)
    assert (await client.post("/subjects/:.other:user/versions", refers)).status == 200
    steps = [
        ("go", "#/subjects/%3A.other%3Auser"),
        ("follow", "2"),
        ("go", "#/subjects/%3A.other%3Auser"),
        ("follow", ":.other:base 1"),
        ("follow", "2"),
        ("go", "#/subjects/%3A.other%3Abase"),
        ("follow", "1"),
        ("go", "#/ids/1"),
        ("go", "#/subjects/100%"),
    ]
    _, _, user, _, base, others, _, by_id, of_default, typed = await read(client, tmp_path, steps)
    assert ":.other:user 1" in user["content"] and '"array"' in user["content"]
    assert base["content"].startswith(":.other:base ")
    assert others["content"] == user["content"]
    assert ":.other:base 1" in by_id["content"] and '"record"' in by_id["content"]
    assert of_default["content"].endswith('"int"')
    assert "Subject '100%' not found" in typed["content"]
