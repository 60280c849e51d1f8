"""A change of a release that helm has left half done: how it is known, and how it is written down as failed.

helm refuses to upgrade a release whose newest revision is pending or uninstalling, and leaves it so where a hook before
a rollback or uninstall fails, and where it is killed. One that has failed can be upgraded, rolled back and uninstalled.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attrs import frozen

from models.charts import releases
from models.charts.releases import Stored

_HALF_DONE = ("pending-install", "pending-upgrade", "pending-rollback", "uninstalling")
_UNINSTALLING = "uninstalling"
_FAILED = "failed"
_REFUSED = re.compile(
    r"another operation .* is in progress|cannot re-?use a name that is still in use|kubernetes cluster unreachable",
    re.IGNORECASE,
)
_BEFORE, _AFTER = 1.0, 120.0
_CALLED = {"install": "Release", "upgrade": "Upgrade", "rollback": "Rollback", "uninstall": "Uninstall"}
_LONGEST = 500


@frozen
class Change:
    """A change that was begun: what helm was asked for, when (seconds since 1970), and how long it might take."""

    namespace: str
    name: str
    command: str
    began: float
    seconds: float

    def has_left(self, stored: Stored) -> bool:
        """Whether a release's newest revision is half done, and was made by this change.

        helm dates what it writes by the clock of this machine, so what is another's is older, or younger.
        """
        info = stored.get("info")
        if not isinstance(info, dict) or info.get("status") not in _HALF_DONE:
            return False
        told = releases.instant(info.get("deleted" if info["status"] == _UNINSTALLING else "last_deployed"))
        if told is None:
            return False
        at = datetime.fromisoformat(told).timestamp()
        return self.began - _BEFORE <= at <= self.began + self.seconds + _AFTER

    def described(self, why: str) -> str:
        """In helm's own way of saying it."""
        return f'{_CALLED[self.command]} "{self.name}" failed: {why}'[:_LONGEST]


def is_refused(stderr: str) -> bool:
    """Whether helm did nothing, mostly because of what another is doing: then what is pending is the other's."""
    return _REFUSED.search(stderr) is not None


def failed(secret: Mapping[str, Any], stored: Stored, description: str, now: float) -> dict[str, Any]:
    """The Secret of a revision, with what is stored in it marked as failed."""
    info = {**stored["info"], "status": _FAILED, "description": description}
    info.pop("deleted", None)
    about = dict(secret["metadata"])
    about["labels"] = {**(about.get("labels") or {}), "status": _FAILED, "modifiedAt": str(int(now))}
    return {**secret, "metadata": about, "data": {**secret["data"], "release": _packed({**stored, "info": info})}}


def _packed(stored: Stored) -> str:
    plain = json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(base64.b64encode(gzip.compress(plain))).decode()
