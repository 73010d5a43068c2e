"""Progress of a pack's node, for those who watch the run."""

from __future__ import annotations

from typing import Any

from katz_graph.compat.current import current
from katz_graph.events import Progressed


class ProgressBar:
    """How far the node is that runs now. Moving it raises when the run was cancelled."""

    def __init__(self, total: int, node_id: str | None = None) -> None:
        self.total, self.current, self.node_id = total, 0, node_id

    def update_absolute(self, value: int, total: int | None = None, preview: Any = None) -> None:
        self.total = self.total if total is None else total
        self.current = min(value, self.total)
        now = current()
        if now is not None:
            now.context.check_cancelled()
            now.context.report(Progressed(str(self.node_id or now.node), self.current, self.total))

    def update(self, value: int) -> None:
        self.update_absolute(self.current + value)
