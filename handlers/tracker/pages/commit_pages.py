"""The pages of commits and pull requests: lists with verdicts, and one with all of its flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handlers.routing import Route
from handlers.tracker.pages import commits as api
from handlers.tracker.pages.commits import CommitInDetail
from handlers.tracker.pages.tracker_pages import ReadPage
from models.times import DAY
from models.tracker import visibility

_ROWS = 50


def covered_by(found: CommitInDetail) -> Sequence[str]:
    """The flags whose coverage is united, and where a carried one is from."""
    names = set(found.coverage.flags) if found.coverage else set()
    texts = []
    for flag in found.flags:
        if flag.flag in names:
            text = flag.flag
            if flag.carried_from is not None:
                days = max(0, (found.created_at - flag.carried_from.created_at) // DAY)
                sha = (flag.carried_from.commit or f"run {flag.carried_from.run_id}")[:7]
                text += f" carried from {sha}, {days} day{'' if days == 1 else 's'}"
            texts.append(text)
    return texts


class CommitsPage(ReadPage):
    """The commits of a project."""

    async def get(self, id: str) -> None:
        branch, cursor = self.query().get("branch") or None, self.query().get("cursor") or None

        def values() -> dict[str, Any]:
            project = visibility.project(self.caller.user, id)
            rows, next_cursor = api.commits_after(self, project, branch, cursor, _ROWS)
            return {"project": project, "rows": rows, "next_cursor": next_cursor}

        await self.show("tracker/commits.html", branch=branch, **await self.read(values))


class CommitPage(ReadPage):
    """A commit with all of its flags."""

    async def get(self, id: str, sha: str) -> None:
        def values() -> dict[str, Any]:
            project = visibility.project(self.caller.user, id)
            shown = api.commit_in_detail(self, project, sha)
            return {
                "project": project, "found": shown, "pull": None, "covered_by": covered_by(shown),
                "max_files": api.MAX_PATCH_FILES,
            }  # fmt: skip

        await self.show_kept("tracker/commit.html", lambda _: api.state_of(self, id), values)


class PullsPage(ReadPage):
    """The pull requests of a project."""

    async def get(self, id: str) -> None:
        cursor = self.query().get("cursor") or None

        def values() -> dict[str, Any]:
            project = visibility.project(self.caller.user, id)
            rows, next_cursor = api.pulls_after(self, project, cursor, _ROWS)
            return {"project": project, "rows": rows, "next_cursor": next_cursor}

        await self.show("tracker/pulls.html", **await self.read(values))


class PullPage(ReadPage):
    """A pull request: its newest commit, and all others."""

    async def get(self, id: str, number: str) -> None:
        def values() -> dict[str, Any]:
            project = visibility.project(self.caller.user, id)
            pull = api.pull_detail(self, id, int(number))
            return {
                "project": project, "found": pull.head, "pull": pull, "covered_by": covered_by(pull.head),
                "max_files": api.MAX_PATCH_FILES,
            }  # fmt: skip

        await self.show_kept("tracker/commit.html", lambda _: api.state_of(self, id), values)


routes: list[Route] = [
    (r"/projects/([0-9]{1,18})/commits", CommitsPage),
    (r"/projects/([0-9]{1,18})/commits/([^/]{1,2000})", CommitPage),
    (r"/projects/([0-9]{1,18})/pulls", PullsPage),
    (r"/projects/([0-9]{1,18})/pulls/([0-9]{1,18})", PullPage),
]
