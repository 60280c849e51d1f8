"""Reads branch, commit, run key and the like from the environment variables of CI systems, as fields of an upload.

Only the standard library is used: this is a part of the stand-alone uploader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from supervisor.cli.ci_systems import (
    MORE_SYSTEMS,
    Environ,
    Fields,
    branch_of,
    joined,
    place_of,
    short_ref,
    without_secrets,
)


def facts(environ: Environ) -> Fields:
    """The fields of the CI job that this process runs in; empty outside of a CI system."""
    for variable, read in _SYSTEMS.items():
        name, _, value = variable.partition("=")
        found = environ.get(name, "")
        if (found == value) if value else (found.lower() not in ("", "false")):
            fields = read(environ)
            for field in ("repoUrl", "headRepo"):
                fields[field] = without_secrets(fields.get(field, ""))
            return {name: value for name, value in fields.items() if value and _is_valid(name, value)}
    return {}


def _is_valid(name: str, value: str) -> bool:
    """Whether the server takes the value: a change of Gerrit has a number with a slash or a hash."""
    return name not in ("prNumber", "attempt") or (value.isascii() and value.isdigit())


def _github(environ: Environ) -> Fields:
    """GitHub Actions, and those of Forgejo and Gitea, which set the same variables."""
    place = f"{environ.get('GITHUB_SERVER_URL', '')}/{environ.get('GITHUB_REPOSITORY', '')}"
    run = environ.get("GITHUB_RUN_ID", "")
    provider = next((name for name in ("forgejo", "gitea") if environ.get(f"{name.upper()}_ACTIONS")), "github")
    page = environ.get("GITHUB_RUN_NUMBER", run) if provider == "forgejo" else run  # by the number within a repository
    return {
        "ciProvider": provider,
        "branch": environ.get("GITHUB_REF_NAME", ""),
        "commit": environ.get("GITHUB_SHA", ""),
        "repoUrl": place if place != "/" else "",
        "buildUrl": f"{place}/actions/runs/{page}" if page else "",
        "buildName": environ.get("GITHUB_WORKFLOW", ""),
        "runKey": f"github-{run}" if run else "",
        "jobKey": environ.get("GITHUB_JOB", ""),
        "jobInstance": environ.get("RUNNER_TRACKING_ID", ""),
        "attempt": environ.get("GITHUB_RUN_ATTEMPT", ""),
        **_github_pull_request(environ),
    }


def _github_pull_request(environ: Environ) -> Fields:
    """The pushed commit and its branch.

    GITHUB_SHA is a merge commit that exists only in the job or, for `pull_request_target`, a commit of the base branch.
    """
    ref = re.match(r"refs/pull/(\d+)/", environ.get("GITHUB_REF", ""))
    if ref is None and not environ.get("GITHUB_HEAD_REF"):
        return {}
    try:
        event = json.loads(Path(environ.get("GITHUB_EVENT_PATH", "")).read_bytes())
    except (OSError, ValueError):
        event = None  # the variables are used then
    head = _text_in(event, "pull_request", "head", "repo", "full_name")
    branch = environ.get("GITHUB_HEAD_REF") or _text_in(event, "pull_request", "head", "ref")
    target = _text_in(event, "pull_request", "base", "repo", "full_name") or environ.get("GITHUB_REPOSITORY", head)
    owner = head.partition("/")[0] or _text_in(event, "pull_request", "head", "user", "login")
    found = {
        "branch": branch_of(branch, owner, head != target),
        "commit": _text_in(event, "pull_request", "head", "sha"),
        "baseBranch": environ.get("GITHUB_BASE_REF") or _text_in(event, "pull_request", "base", "ref"),
        "prNumber": ref[1] if ref else _text_in(event, "pull_request", "number"),
        "headRepo": head if head != target else "",
    }
    return {name: value for name, value in found.items() if value}


def _text_in(value: Any, *names: str) -> str:
    """The text or number at a path of nested objects, else an empty text."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return str(value) if isinstance(value, (str, int)) else ""


def _gitlab(environ: Environ) -> Fields:
    merge = "CI_MERGE_REQUEST_"
    pipeline = environ.get("CI_PIPELINE_ID", "")
    source = environ.get(f"{merge}SOURCE_PROJECT_PATH", "")
    branch = environ.get(f"{merge}SOURCE_BRANCH_NAME", "")
    is_fork = source != environ.get(f"{merge}PROJECT_PATH", source)
    return {
        "ciProvider": "gitlab",
        "branch": branch_of(branch, source.rpartition("/")[0], is_fork) or environ.get("CI_COMMIT_REF_NAME", ""),
        "commit": environ.get(f"{merge}SOURCE_BRANCH_SHA") or environ.get("CI_COMMIT_SHA", ""),
        "baseBranch": environ.get(f"{merge}TARGET_BRANCH_NAME", ""),
        "prNumber": environ.get(f"{merge}IID", ""),
        "headRepo": source if is_fork else "",
        "repoUrl": environ.get("CI_PROJECT_URL", ""),
        "buildUrl": environ.get("CI_JOB_URL") or environ.get("CI_PIPELINE_URL", ""),
        "buildName": environ.get("CI_JOB_NAME", ""),
        "runKey": f"gitlab-{pipeline}" if pipeline else "",
        "jobKey": environ.get("CI_JOB_NAME", ""),
        "jobInstance": environ.get("CI_JOB_ID", ""),
        "attempt": environ.get("CI_JOB_ID", ""),
    }


def _jenkins(environ: Environ) -> Fields:
    tag = environ.get("BUILD_TAG", "")
    fork = environ.get("CHANGE_FORK", "")
    branch = branch_of(environ.get("CHANGE_BRANCH", ""), fork, bool(fork))
    checked_out = environ.get("GIT_BRANCH", "").removeprefix("origin/")
    branch = branch or environ.get("BRANCH_NAME") or ("" if checked_out in ("detached", "HEAD") else checked_out)
    return {
        "ciProvider": "jenkins",
        "branch": branch,
        "commit": environ.get("GIT_COMMIT", ""),
        "baseBranch": environ.get("CHANGE_TARGET", ""),
        "prNumber": environ.get("CHANGE_ID", ""),
        "headRepo": fork,
        "repoUrl": environ.get("GIT_URL", ""),
        "buildUrl": environ.get("BUILD_URL", ""),
        "buildName": environ.get("JOB_NAME", ""),
        "runKey": tag if not tag or tag.startswith("jenkins-") else f"jenkins-{tag}",
        "jobKey": environ.get("STAGE_NAME", ""),
    }


def _circleci(environ: Environ) -> Fields:
    workflow = environ.get("CIRCLE_WORKFLOW_ID", "")
    pull = environ.get("CIRCLE_PR_NUMBER") or environ.get("CIRCLE_PULL_REQUEST", "").rpartition("/")[2]
    return {
        "ciProvider": "circleci",
        "branch": environ.get("CIRCLE_BRANCH") or environ.get("CIRCLE_TAG", ""),
        "commit": environ.get("CIRCLE_SHA1", ""),
        "prNumber": pull,
        "headRepo": joined(environ, "CIRCLE_PR_USERNAME", "CIRCLE_PR_REPONAME"),
        "repoUrl": environ.get("CIRCLE_REPOSITORY_URL", ""),
        "buildUrl": environ.get("CIRCLE_BUILD_URL", ""),
        "buildName": environ.get("CIRCLE_JOB", ""),
        "runKey": f"circleci-{workflow}" if workflow else "",
        **_circleci_job(environ),
    }


def _circleci_job(environ: Environ) -> Fields:
    job, node = environ.get("CIRCLE_JOB", ""), environ.get("CIRCLE_NODE_INDEX", "")
    return {
        "jobKey": f"{job}#{node}" if job and node else job,
        "jobInstance": environ.get("CIRCLE_WORKFLOW_JOB_ID", ""),
        "attempt": environ.get("CIRCLE_BUILD_NUM", ""),
    }


def _buildkite(environ: Environ) -> Fields:
    pull, commit = environ.get("BUILDKITE_PULL_REQUEST", ""), environ.get("BUILDKITE_COMMIT", "")
    build = environ.get("BUILDKITE_BUILD_ID", "")
    fork, repository = environ.get("BUILDKITE_PULL_REQUEST_REPO", ""), environ.get("BUILDKITE_REPO", "")
    return {
        "ciProvider": "buildkite",
        "branch": environ.get("BUILDKITE_BRANCH", ""),
        "commit": "" if commit == "HEAD" else commit,
        "baseBranch": environ.get("BUILDKITE_PULL_REQUEST_BASE_BRANCH", ""),
        "prNumber": "" if pull == "false" else pull,
        "headRepo": "" if pull in ("", "false") or place_of(fork) == place_of(repository) else fork,
        "repoUrl": environ.get("BUILDKITE_REPO", ""),
        "buildUrl": environ.get("BUILDKITE_BUILD_URL", ""),
        "buildName": environ.get("BUILDKITE_PIPELINE_SLUG", ""),
        "runKey": f"buildkite-{build}" if build else "",
        "jobKey": joined(environ, "BUILDKITE_STEP_ID", "BUILDKITE_PARALLEL_JOB"),
        "jobInstance": environ.get("BUILDKITE_JOB_ID", ""),
        "attempt": environ.get("BUILDKITE_RETRY_COUNT", ""),
    }


def _azure(environ: Environ) -> Fields:
    pull, build = "SYSTEM_PULLREQUEST_", environ.get("BUILD_BUILDID", "")
    place = environ.get("SYSTEM_COLLECTIONURI", "") + environ.get("SYSTEM_TEAMPROJECT", "").replace(" ", "%20")
    return {
        "ciProvider": "azure",
        "branch": _azure_branch(environ) or short_ref(environ.get("BUILD_SOURCEBRANCH", "")),
        "commit": environ.get(f"{pull}SOURCECOMMITID") or environ.get("BUILD_SOURCEVERSION", ""),
        "baseBranch": short_ref(environ.get(f"{pull}TARGETBRANCH", "")),
        "prNumber": environ.get(f"{pull}PULLREQUESTNUMBER") or environ.get(f"{pull}PULLREQUESTID", ""),
        "headRepo": _azure_fork(environ),
        "repoUrl": environ.get("BUILD_REPOSITORY_URI", ""),
        "buildUrl": f"{place}/_build/results?buildId={build}" if place and build else "",
        "buildName": environ.get("BUILD_DEFINITIONNAME", ""),
        "runKey": f"azure-{build}" if build else "",
        "jobKey": joined(environ, "SYSTEM_STAGENAME", "SYSTEM_PHASENAME", "AGENT_JOBNAME"),
        "jobInstance": environ.get("SYSTEM_JOBID", ""),
        "attempt": _azure_attempt(environ),
    }


def _azure_branch(environ: Environ) -> str:
    """The branch of a pull request; of a fork with the owner of its repository, or with its name in Azure Repos."""
    pull = "SYSTEM_PULLREQUEST_"
    try:
        place = urlsplit(environ.get(f"{pull}SOURCEREPOSITORYURI", "")).path.strip("/")
    except ValueError:
        place = ""
    owner, _, name = place.rpartition("/")
    is_fork = environ.get(f"{pull}ISFORK", "").lower() == "true"
    owner = (name if owner.endswith("_git") else owner) or "fork"
    return branch_of(short_ref(environ.get(f"{pull}SOURCEBRANCH", "")), owner, is_fork)


def _azure_fork(environ: Environ) -> str:
    """The repository of a pull request from a fork."""
    pull = "SYSTEM_PULLREQUEST_"
    is_fork = environ.get(f"{pull}ISFORK", "").lower() == "true"
    return environ.get(f"{pull}SOURCEREPOSITORYURI", "") if is_fork else ""


def _azure_attempt(environ: Environ) -> str:
    stage, job = (environ.get(name, "") for name in ("SYSTEM_STAGEATTEMPT", "SYSTEM_JOBATTEMPT"))
    return str(int(stage) * 1000 + int(job)) if stage.isdigit() and job.isdigit() else ""


_SYSTEMS: Mapping[str, Callable[[Environ], Fields]] = {
    "GITHUB_ACTIONS": _github,
    "GITLAB_CI": _gitlab,
    "JENKINS_URL": _jenkins,
    "CIRCLECI": _circleci,
    "BUILDKITE": _buildkite,
    "TF_BUILD": _azure,
    **MORE_SYSTEMS,
}
"""By the variable that only this system sets, or by a variable with its value."""
