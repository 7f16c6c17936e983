"""`ottla.state_change`: the one logger that every change of a partition's state is said by, so that it can have a file of its own.

A change is said once by the controller that has decided and written it, and once by each broker that has applied it:
who leads, who is in sync, which epochs, which replicas. As Kafka's `state.change.logger`; the level is INFO.
"""

from __future__ import annotations

import logging
from typing import Final

state_changes: Final = logging.getLogger("ottla.state_change")
