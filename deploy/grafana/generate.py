"""Writes dashboards/*.json from the declarations beside this file; with `--check` it only compares.

python -m deploy.grafana.generate
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from deploy.grafana.audit import AUDIT
from deploy.grafana.board import Board, json_of
from deploy.grafana.brokers import BROKERS
from deploy.grafana.groups import GROUPS
from deploy.grafana.mirror import MIRROR
from deploy.grafana.overview import OVERVIEW
from deploy.grafana.registry import REGISTRY
from deploy.grafana.replication import REPLICATION
from deploy.grafana.topics import TOPICS
from deploy.grafana.transactions import TRANSACTIONS
from deploy.grafana.zookeeper import ZOOKEEPER

BOARDS: Final[tuple[Board, ...]] = (OVERVIEW, BROKERS, REPLICATION, TOPICS, GROUPS, TRANSACTIONS, ZOOKEEPER, REGISTRY, AUDIT, MIRROR)
INTO: Final = Path(__file__).parent / "dashboards"


def files() -> dict[str, str]:
    """What stands in which file."""
    return {f"{board.name}.json": json_of(board) for board in BOARDS}


def differences() -> list[str]:
    """The files that are not what the declarations say, or that no declaration has."""
    wanted = files()
    there = {path.name: path.read_text(encoding="utf-8") for path in INTO.glob("*.json")}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 1 if differences() else 0
    INTO.mkdir(exist_ok=True)
    for path in INTO.glob("*.json"):
        path.unlink()
    for name, text in files().items():
        (INTO / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
