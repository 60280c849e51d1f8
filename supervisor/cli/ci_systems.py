"""Every CI system: what its environment variables say, by its own documentation, and the setting of its clone depth.

Only the standard library is used: this is a part of the stand-alone uploader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from supervisor.cli.ci_fields import (
    Environ,
    Fields,
    branch_of,
    joined,
    place_of,
    properties,
    short_ref,
    text_in,
    without_secrets,
)


class System(NamedTuple):
    """A CI system, known by a variable that only it sets, or by a variable with its value.

    `read` returns the fields of an upload, `depth` is the setting by which the clone has the history.
    """

    variable: str
    provider: str
    read: Callable[[Environ], Fields]
    depth: str


def facts(environ: Environ) -> Fields:
    """The fields of the CI job that this process runs in; empty outside of a CI system."""
    for system in SYSTEMS:
        name, _, value = system.variable.partition("=")
        found = environ.get(name, "")
        if (found == value) if value else (found.lower() not in ("", "false")):
            fields = system.read(environ)
            for field in ("repoUrl", "headRepo"):
                fields[field] = without_secrets(fields.get(field, ""))
            return {name: value for name, value in fields.items() if value and _is_valid(name, value)}
    return {}


def depth_setting(provider: str) -> str:
    """How the clone of a CI system gets more history; for an unknown one that of GitHub and GitLab."""
    settings = {system.provider: system.depth for system in SYSTEMS} | _SAME_VARIABLES
    return settings.get(provider) or f"{settings['github']}; {settings['gitlab']}"


def _is_valid(name: str, value: str) -> bool:
    """Whether the server takes the value: a change of Gerrit has a number with a slash or a hash."""
    return name not in ("prNumber", "attempt") or (value.isascii() and value.isdigit())


def _github(environ: Environ) -> Fields:
    """https://docs.github.com/actions/reference/workflows-and-actions/variables; Forgejo and Gitea set the same."""
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
    head = text_in(event, "pull_request", "head", "repo", "full_name")
    branch = environ.get("GITHUB_HEAD_REF") or text_in(event, "pull_request", "head", "ref")
    target = text_in(event, "pull_request", "base", "repo", "full_name") or environ.get("GITHUB_REPOSITORY", head)
    owner = head.partition("/")[0] or text_in(event, "pull_request", "head", "user", "login")
    found = {
        "branch": branch_of(branch, owner, head != target),
        "commit": text_in(event, "pull_request", "head", "sha"),
        "baseBranch": environ.get("GITHUB_BASE_REF") or text_in(event, "pull_request", "base", "ref"),
        "prNumber": ref[1] if ref else text_in(event, "pull_request", "number"),
        "headRepo": head if head != target else "",
    }
    return {name: value for name, value in found.items() if value}


def _gitlab(environ: Environ) -> Fields:
    """https://docs.gitlab.com/ci/variables/predefined_variables/."""
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
    """https://www.jenkins.io/doc/book/pipeline/jenkinsfile/#using-environment-variables, and plugins."""
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
    """https://circleci.com/docs/reference/variables/."""
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
    """https://buildkite.com/docs/pipelines/configure/environment-variables."""
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
    """https://learn.microsoft.com/azure/devops/pipelines/build/variables."""
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


def _bitbucket(environ: Environ) -> Fields:
    """https://support.atlassian.com/bitbucket-cloud/docs/variables-and-secrets/."""
    place, number = environ.get("BITBUCKET_GIT_HTTP_ORIGIN", ""), environ.get("BITBUCKET_BUILD_NUMBER", "")
    name = environ.get("BITBUCKET_REPO_FULL_NAME", "")
    return {
        "ciProvider": "bitbucket",
        "branch": environ.get("BITBUCKET_BRANCH") or environ.get("BITBUCKET_TAG", ""),
        "commit": environ.get("BITBUCKET_COMMIT", ""),
        "baseBranch": environ.get("BITBUCKET_PR_DESTINATION_BRANCH", ""),
        "prNumber": environ.get("BITBUCKET_PR_ID", ""),
        "repoUrl": place or (f"https://bitbucket.org/{name}" if name else ""),
        "buildUrl": f"https://bitbucket.org/{name}/pipelines/results/{number}" if name else "",
        "runKey": f"bitbucket-{environ.get('BITBUCKET_PIPELINE_UUID', number).strip('{}')}",
        "jobKey": joined(environ, "BITBUCKET_STEP_UUID", "BITBUCKET_PARALLEL_STEP"),
        "attempt": environ.get("BITBUCKET_STEP_RUN_NUMBER", "1"),
    }


def _teamcity(environ: Environ) -> Fields:
    """https://www.jetbrains.com/help/teamcity/predefined-build-parameters.html: most are in files of properties."""
    known = properties(environ.get("TEAMCITY_BUILD_PROPERTIES_FILE", ""))
    known |= properties(known.get("teamcity.configuration.properties.file", ""))
    branch = known.get("teamcity.build.branch", "")
    if branch in ("", "<default>"):
        branches = (value for name, value in known.items() if name.startswith("teamcity.build.vcs.branch."))
        branch = next(branches, known.get("vcsroot.branch", ""))
    build = known.get("teamcity.build.id", "")
    return {
        "ciProvider": "teamcity",
        "branch": short_ref(known.get("teamcity.pullRequest.source.branch") or branch),
        "commit": environ.get("BUILD_VCS_NUMBER", ""),
        "baseBranch": short_ref(known.get("teamcity.pullRequest.target.branch", "")),
        "prNumber": known.get("teamcity.pullRequest.number", ""),
        "repoUrl": known.get("vcsroot.url", ""),
        "buildUrl": environ.get("BUILD_URL", ""),
        "buildName": environ.get("TEAMCITY_BUILDCONF_NAME", ""),
        "runKey": f"teamcity-{build}" if build else "",
        "jobKey": environ.get("TEAMCITY_BUILDCONF_NAME", ""),
    }


def _travis(environ: Environ) -> Fields:
    """https://docs.travis-ci.com/user/environment-variables/: TRAVIS_BRANCH is the target of a pull request."""
    pull = environ.get("TRAVIS_PULL_REQUEST", "").replace("false", "")
    head, target = environ.get("TRAVIS_PULL_REQUEST_SLUG", ""), environ.get("TRAVIS_REPO_SLUG", "")
    build = environ.get("TRAVIS_BUILD_ID", "")
    is_fork = bool(pull) and head != target
    branch = branch_of(environ.get("TRAVIS_PULL_REQUEST_BRANCH", ""), head.partition("/")[0], is_fork)
    return {
        "ciProvider": "travis",
        "branch": branch if pull else environ.get("TRAVIS_BRANCH", ""),
        "commit": (pull and environ.get("TRAVIS_PULL_REQUEST_SHA")) or environ.get("TRAVIS_COMMIT", ""),
        "baseBranch": environ.get("TRAVIS_BRANCH", "") if pull else "",
        "prNumber": pull,
        "headRepo": head if is_fork else "",
        "buildUrl": environ.get("TRAVIS_JOB_WEB_URL") or environ.get("TRAVIS_BUILD_WEB_URL", ""),
        "buildName": environ.get("TRAVIS_JOB_NAME", ""),
        "runKey": f"travis-{build}" if build else "",
        "jobKey": environ.get("TRAVIS_JOB_NUMBER", "").rpartition(".")[2],
        "jobInstance": environ.get("TRAVIS_JOB_ID", ""),
    }


def _drone(environ: Environ) -> Fields:
    """https://docs.drone.io/pipeline/environment/reference/."""
    pull, number = environ.get("DRONE_PULL_REQUEST", ""), environ.get("DRONE_BUILD_NUMBER", "")
    source = environ.get("DRONE_SOURCE_BRANCH") if pull else ""
    return {
        "ciProvider": "drone",
        "branch": source or environ.get("DRONE_BRANCH") or environ.get("DRONE_TAG", ""),
        "commit": environ.get("DRONE_COMMIT_SHA") or environ.get("DRONE_COMMIT", ""),
        "baseBranch": environ.get("DRONE_TARGET_BRANCH", "") if pull else "",
        "prNumber": pull,
        "repoUrl": environ.get("DRONE_REPO_LINK", ""),
        "buildUrl": environ.get("DRONE_BUILD_LINK", ""),
        "buildName": environ.get("DRONE_STAGE_NAME", ""),
        "runKey": f"drone-{joined(environ, 'DRONE_REPO', 'DRONE_BUILD_NUMBER')}" if number else "",
        "jobKey": joined(environ, "DRONE_STAGE_NAME", "DRONE_STEP_NAME"),
    }


def _woodpecker(environ: Environ) -> Fields:
    """https://woodpecker-ci.org/docs/usage/environment: CI_COMMIT_BRANCH is the target of a pull request."""
    pull, number = environ.get("CI_COMMIT_PULL_REQUEST", ""), environ.get("CI_PIPELINE_NUMBER", "")
    source = environ.get("CI_COMMIT_SOURCE_BRANCH") if pull else ""
    return {
        "ciProvider": "woodpecker",
        "branch": source or environ.get("CI_COMMIT_BRANCH") or environ.get("CI_COMMIT_TAG", ""),
        "commit": environ.get("CI_COMMIT_SHA", ""),
        "baseBranch": environ.get("CI_COMMIT_TARGET_BRANCH", "") if pull else "",
        "prNumber": pull,
        "repoUrl": environ.get("CI_REPO_URL", ""),
        "buildUrl": environ.get("CI_PIPELINE_URL", ""),
        "buildName": environ.get("CI_WORKFLOW_NAME", ""),
        "runKey": f"woodpecker-{joined(environ, 'CI_REPO', 'CI_PIPELINE_NUMBER')}" if number else "",
        "jobKey": joined(environ, "CI_WORKFLOW_NAME", "CI_WORKFLOW_NUMBER", "CI_STEP_NAME"),
    }


def _appveyor(environ: Environ) -> Fields:
    """https://www.appveyor.com/docs/environment-variables/: APPVEYOR_REPO_BRANCH is the target of a pull request."""
    pull, build = environ.get("APPVEYOR_PULL_REQUEST_NUMBER", ""), environ.get("APPVEYOR_BUILD_ID", "")
    head, target = environ.get("APPVEYOR_PULL_REQUEST_HEAD_REPO_NAME", ""), environ.get("APPVEYOR_REPO_NAME", "")
    place = joined(environ, "APPVEYOR_ACCOUNT_NAME", "APPVEYOR_PROJECT_SLUG")
    server, is_fork = environ.get("APPVEYOR_URL", "https://ci.appveyor.com"), bool(pull) and head != target
    branch = branch_of(environ.get("APPVEYOR_PULL_REQUEST_HEAD_REPO_BRANCH", ""), head.partition("/")[0], is_fork)
    commit = environ.get("APPVEYOR_PULL_REQUEST_HEAD_COMMIT") if pull else ""
    return {
        "ciProvider": "appveyor",
        "branch": branch if pull else environ.get("APPVEYOR_REPO_BRANCH", ""),
        "commit": commit or environ.get("APPVEYOR_REPO_COMMIT", ""),
        "baseBranch": environ.get("APPVEYOR_REPO_BRANCH", "") if pull else "",
        "prNumber": pull,
        "headRepo": head if is_fork else "",
        "buildUrl": f"{server}/project/{place}/builds/{build}" if place and build else "",
        "buildName": environ.get("APPVEYOR_PROJECT_NAME", ""),
        "runKey": f"appveyor-{build}" if build else "",
        "jobKey": environ.get("APPVEYOR_JOB_NAME") or environ.get("APPVEYOR_JOB_NUMBER", ""),
        "jobInstance": environ.get("APPVEYOR_JOB_ID", ""),
    }


def _semaphore(environ: Environ) -> Fields:
    """https://docs.semaphoreci.com/reference/env-vars: SEMAPHORE_GIT_BRANCH is the target of a pull request."""
    pull, workflow = environ.get("SEMAPHORE_GIT_PR_NUMBER", ""), environ.get("SEMAPHORE_WORKFLOW_ID", "")
    head, target = environ.get("SEMAPHORE_GIT_PR_SLUG", ""), environ.get("SEMAPHORE_GIT_REPO_SLUG", "")
    server, is_fork = environ.get("SEMAPHORE_ORGANIZATION_URL", ""), bool(pull) and head != target
    branch = branch_of(environ.get("SEMAPHORE_GIT_PR_BRANCH", ""), head.partition("/")[0], is_fork)
    return {
        "ciProvider": "semaphore",
        "branch": branch if pull else environ.get("SEMAPHORE_GIT_BRANCH") or environ.get("SEMAPHORE_GIT_TAG_NAME", ""),
        "commit": (pull and environ.get("SEMAPHORE_GIT_PR_SHA")) or environ.get("SEMAPHORE_GIT_SHA", ""),
        "baseBranch": environ.get("SEMAPHORE_GIT_BRANCH", "") if pull else "",
        "prNumber": pull,
        "headRepo": head if is_fork else "",
        "buildUrl": f"{server}/workflows/{workflow}" if server and workflow else "",
        "buildName": environ.get("SEMAPHORE_JOB_NAME", ""),
        "runKey": f"semaphore-{workflow}" if workflow else "",
        "jobKey": joined(environ, "SEMAPHORE_JOB_NAME", "SEMAPHORE_JOB_INDEX"),
        "jobInstance": environ.get("SEMAPHORE_JOB_ID", ""),
    }


def _cirrus(environ: Environ) -> Fields:
    """https://cirrus-ci.org/guide/writing-tasks/#environment-variables: a pull request is on `pull/7`."""
    build, task = environ.get("CIRRUS_BUILD_ID", ""), environ.get("CIRRUS_TASK_ID", "")
    host, name = environ.get("CIRRUS_REPO_CLONE_HOST", "github.com"), environ.get("CIRRUS_REPO_FULL_NAME", "")
    return {
        "ciProvider": "cirrus",
        "branch": environ.get("CIRRUS_BRANCH") or environ.get("CIRRUS_TAG", ""),
        "commit": environ.get("CIRRUS_CHANGE_IN_REPO", ""),
        "baseBranch": environ.get("CIRRUS_BASE_BRANCH", "") if environ.get("CIRRUS_PR") else "",
        "prNumber": environ.get("CIRRUS_PR", ""),
        "repoUrl": f"https://{host}/{name}" if name else "",
        "buildUrl": f"https://cirrus-ci.com/task/{task}" if task else "",
        "buildName": environ.get("CIRRUS_TASK_NAME", ""),
        "runKey": f"cirrus-{build}" if build else "",
        "jobKey": environ.get("CIRRUS_TASK_NAME", ""),
        "jobInstance": task,
    }


def _codebuild(environ: Environ) -> Fields:
    """https://docs.aws.amazon.com/codebuild/latest/userguide/build-env-ref-env-vars.html."""
    source, build = environ.get("CODEBUILD_SOURCE_VERSION", ""), environ.get("CODEBUILD_BUILD_ID", "")
    trigger = environ.get("CODEBUILD_WEBHOOK_TRIGGER", "")
    pull = re.fullmatch(r"pr/(\d+)", trigger or source)
    named = "" if re.fullmatch(r"[0-9a-f]{40}|arn:.*|pr/\d+", source) else short_ref(source)
    return {
        "ciProvider": "codebuild",
        "branch": short_ref(environ.get("CODEBUILD_WEBHOOK_HEAD_REF", ""))
        or re.sub(r"^(branch|tag)/|^pr/\d+$", "", trigger) or named,
        "commit": environ.get("CODEBUILD_RESOLVED_SOURCE_VERSION", ""),
        "baseBranch": short_ref(environ.get("CODEBUILD_WEBHOOK_BASE_REF", "")) if pull else "",
        "prNumber": pull[1] if pull else "",
        "repoUrl": environ.get("CODEBUILD_SOURCE_REPO_URL", ""),
        "buildUrl": environ.get("CODEBUILD_BUILD_URL", ""),
        "buildName": build.partition(":")[0],
        "runKey": f"codebuild-{build}" if build else "",
        "jobKey": environ.get("CODEBUILD_BATCH_BUILD_IDENTIFIER", ""),
    }  # fmt: skip


def _google(environ: Environ) -> Fields:
    """https://cloud.google.com/build/docs/configuring-builds/substitute-variable-values (`automapSubstitutions`)."""
    build, project, place = (environ.get(name, "") for name in ("BUILD_ID", "PROJECT_ID", "LOCATION"))
    pull, head = environ.get("_PR_NUMBER", ""), environ.get("_HEAD_REPO_URL", "")
    owner, name = [*place_of(head).split("/")[1:], "", ""][:2]
    is_fork = bool(pull and head) and f"{owner}/{name}" != environ.get("REPO_FULL_NAME", f"{owner}/{name}")
    region = f";region={place}" if place else ""
    source = branch_of(environ.get("_HEAD_BRANCH", ""), owner, is_fork) if pull else ""
    return {
        "ciProvider": "google-cloud-build",
        "branch": source or environ.get("BRANCH_NAME") or environ.get("TAG_NAME", ""),
        "commit": environ.get("COMMIT_SHA") or environ.get("REVISION_ID", ""),
        "baseBranch": environ.get("_BASE_BRANCH", "") if pull else "",
        "prNumber": pull,
        "headRepo": head if is_fork else "",
        "buildUrl": f"https://console.cloud.google.com/cloud-build/builds{region}/{build}?project={project}"
        if build and project else "",
        "buildName": environ.get("TRIGGER_NAME", ""),
        "runKey": f"google-{build}" if build else "",
    }  # fmt: skip


def _codefresh(environ: Environ) -> Fields:
    """https://codefresh.io/docs/docs/pipelines/variables/: of a fork only that it is one."""
    build, pull = environ.get("CF_BUILD_ID", ""), environ.get("CF_PULL_REQUEST_NUMBER", "")
    is_fork = environ.get("CF_PULL_REQUEST_IS_FORK", "").lower() == "true"
    return {
        "ciProvider": "codefresh",
        "branch": branch_of(environ.get("CF_BRANCH", ""), "fork", is_fork),
        "commit": environ.get("CF_REVISION", ""),
        "baseBranch": environ.get("CF_PULL_REQUEST_TARGET", "") if pull else "",
        "prNumber": pull,
        "headRepo": "fork" if is_fork else "",
        "buildUrl": environ.get("CF_BUILD_URL", ""),
        "buildName": environ.get("CF_PIPELINE_NAME", ""),
        "runKey": f"codefresh-{build}" if build else "",
        "jobKey": environ.get("CF_STEP_NAME", ""),
    }


SYSTEMS = (
    System("GITHUB_ACTIONS", "github", _github, "GitHub Actions: `fetch-depth: 0`"),
    System("GITLAB_CI", "gitlab", _gitlab, "GitLab CI: `GIT_DEPTH: 0`"),
    System("JENKINS_URL", "jenkins", _jenkins, "Jenkins: no shallow clone, and the target branch in the refspec"),
    System("CIRCLECI", "circleci", _circleci, "CircleCI: `checkout: {method: full}`"),
    System("BUILDKITE", "buildkite", _buildkite, "Buildkite: no `--depth` in `BUILDKITE_GIT_CLONE_FLAGS`"),
    System("TF_BUILD", "azure", _azure, "Azure Pipelines: `fetchDepth: 0`"),
    System("BITBUCKET_BUILD_NUMBER", "bitbucket", _bitbucket, "Bitbucket Pipelines: `clone: {depth: full}`"),
    System("TEAMCITY_VERSION", "teamcity", _teamcity, "TeamCity: no shallow clone"),
    System("TRAVIS", "travis", _travis, "Travis CI: `git: {depth: false}`"),
    System("CI=woodpecker", "woodpecker", _woodpecker, "Woodpecker: `partial: false` of the clone step"),
    System("DRONE", "drone", _drone, "Drone: no `depth` below `clone`"),
    System("APPVEYOR", "appveyor", _appveyor, "AppVeyor: no `clone_depth`"),
    System("SEMAPHORE", "semaphore", _semaphore, "Semaphore: a larger `SEMAPHORE_GIT_DEPTH`"),
    System("CIRRUS_CI", "cirrus", _cirrus, "Cirrus CI: no `CIRRUS_CLONE_DEPTH`"),
    System("CODEBUILD_BUILD_ID", "codebuild", _codebuild, "AWS CodeBuild: Git clone depth Full"),
    System("CF_BUILD_ID", "codefresh", _codefresh, "Codefresh: no `depth` of the git-clone step"),
    System("BUILDER_OUTPUT", "google-cloud-build", _google, "Google Cloud Build: `git fetch --unshallow`"),
)
"""Every CI system. Woodpecker sets the variables of Drone too, so it is before it."""

_SAME_VARIABLES = {
    "forgejo": "Forgejo Actions: `fetch-depth: 0`",
    "gitea": "Gitea Actions: `fetch-depth: 0`",
}
"""The depth of systems that set the variables of GitHub Actions."""
