"""`ottla schema export`: the order of its lines, which is that in which they can be registered again. `import`: what it says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.schema_registry.registries import Client, asking
from typer.testing import CliRunner

from ottla.cli.schema import app


async def schema(client: Client, *command: str) -> Any:
    """What `ottla schema` answers for the registry that the client asks."""
    return await asyncio.to_thread(CliRunner().invoke, app, [*command, "--registry", f"http://127.0.0.1:{client.port}"])


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A file with a version of the subject a."""
    path = tmp_path / "exported"
    path.write_text(json.dumps({"subject": "a", "version": 1, "id": 1, "schema": '"int"'}), encoding="utf-8")
    return path


async def test_in_a_named_context_too_what_others_refer_to_is_exported_first(client: Client) -> None:
    """A reference names no context where it is that of its own subject; the import of such an export was refused at its first line."""
    await client.put("/mode/:.__GLOBAL:?force=true", {"mode": "IMPORT"})
    base, user = {"schema": '"int"', "id": 9}, {"schema": '"long"', "id": 3, "references": [{"name": "b", "subject": "base", "version": 1}]}
    for context in ("", ":.other:"):
        for subject, body in (("base", base), ("user", user)):
            assert (await client.post(f"/subjects/{context}{subject}/versions", body)).status == 200
    result = await schema(client, "export")
    subjects = [json.loads(line)["subject"] for line in result.output.splitlines()]
    for context in ("", ":.other:"):
        assert subjects.index(f"{context}base") < subjects.index(f"{context}user"), result.output


async def test_an_import_that_may_set_no_mode_does_not_say_that_a_subject_was_left_in_it(exported: Path) -> None:
    """It said that of the subject at which it was refused."""
    async with asking(may_change_mode=False) as client:
        result = await schema(client, "import", str(exported))
    assert result.exit_code and "IMPORT" not in result.output, result.output
    assert "Mode changes are not allowed" in f"{result.output}{result.exception}"


async def test_an_import_into_a_registry_that_may_be_read_alone_changes_no_subjects_mode(client: Client, exported: Path) -> None:
    """READONLY_OVERRIDE of the whole registry is answered for each subject, and was set as its own: it stayed so for good."""
    assert (await client.put("/mode", {"mode": "READONLY_OVERRIDE"})).status == 200
    result = await schema(client, "import", str(exported))
    assert result.exit_code and "READONLY_OVERRIDE" in f"{result.output}{result.exception}"
    assert (await client.put("/mode", {"mode": "READWRITE"})).status == 200
    assert (await client.get("/mode/a")).code == 40409
