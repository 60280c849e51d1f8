"""More CI systems: what their environment variables say, each by its own documentation; and each system's clone depth.

Only the standard library is used: this is a part of the stand-alone uploader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

Environ = Mapping[str, str]
Fields = dict[str, str]


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
    known = _properties(environ.get("TEAMCITY_BUILD_PROPERTIES_FILE", ""))
    known |= _properties(known.get("teamcity.configuration.properties.file", ""))
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


def _properties(file: str) -> Fields:
    """A file of Java properties; empty if it cannot be read."""
    try:
        lines = Path(file).read_text(encoding="latin-1").splitlines() if file else []
    except OSError:
        return {}
    pairs = (re.match(r"\s*([^#!\s](?:[^=:\\]|\\.)*?)\s*[=:]\s*(.*)", line) for line in lines)
    return {re.sub(r"\\(.)", r"\1", pair[1]): re.sub(r"\\(.)", r"\1", pair[2]) for pair in pairs if pair}


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


def joined(environ: Environ, *names: str) -> str:
    """The values of the variables that are set, with slashes between them."""
    return "/".join(value for name in names if (value := environ.get(name, "")))


def short_ref(ref: str) -> str:
    """The name of a branch or tag, without the beginning of a full ref."""
    return re.sub(r"^refs/(heads|tags)/", "", ref)


def branch_of(branch: str, owner: str, is_fork: bool) -> str:
    """The branch of a pull request, as `owner:branch` if it is one of a fork: its `main` is another one than ours."""
    return f"{owner}:{branch}" if branch and owner and is_fork else branch


def place_of(repository: str) -> str:
    """Host and path of a repository, whose URL may have another scheme: `git://host/a/b.git` is `git@host:a/b`."""
    place = re.sub(r"^(\w+://)?([^@/]*@)?", "", repository).replace(":", "/", 1)
    return place.removesuffix("/").removesuffix(".git")


def without_secrets(url: str) -> str:
    """The URL without user name and password: CI systems clone with tokens in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https"):
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


MORE_SYSTEMS: Mapping[str, Callable[[Environ], Fields]] = {
    "BITBUCKET_BUILD_NUMBER": _bitbucket,
    "TEAMCITY_VERSION": _teamcity,
    "TRAVIS": _travis,
    "CI=woodpecker": _woodpecker,
    "DRONE": _drone,
    "APPVEYOR": _appveyor,
    "SEMAPHORE": _semaphore,
    "CIRRUS_CI": _cirrus,
    "CODEBUILD_BUILD_ID": _codebuild,
    "CF_BUILD_ID": _codefresh,
    "BUILDER_OUTPUT": _google,
}
"""By the variable that only this system sets, or by a variable with its value."""

DEPTHS: Mapping[str, str] = {
    "github": "GitHub Actions: `fetch-depth: 0`",
    "forgejo": "Forgejo Actions: `fetch-depth: 0`",
    "gitea": "Gitea Actions: `fetch-depth: 0`",
    "gitlab": "GitLab CI: `GIT_DEPTH: 0`",
    "jenkins": "Jenkins: no shallow clone, and the target branch in the refspec",
    "circleci": "CircleCI: `checkout: {method: full}`",
    "buildkite": "Buildkite: no `--depth` in `BUILDKITE_GIT_CLONE_FLAGS`",
    "azure": "Azure Pipelines: `fetchDepth: 0`",
    "bitbucket": "Bitbucket Pipelines: `clone: {depth: full}`",
    "teamcity": "TeamCity: no shallow clone",
    "travis": "Travis CI: `git: {depth: false}`",
    "drone": "Drone: no `depth` below `clone`",
    "woodpecker": "Woodpecker: `partial: false` of the clone step",
    "appveyor": "AppVeyor: no `clone_depth`",
    "semaphore": "Semaphore: a larger `SEMAPHORE_GIT_DEPTH`",
    "cirrus": "Cirrus CI: no `CIRRUS_CLONE_DEPTH`",
    "codebuild": "AWS CodeBuild: Git clone depth Full",
    "google-cloud-build": "Google Cloud Build: `git fetch --unshallow`",
    "codefresh": "Codefresh: no `depth` of the git-clone step",
}
"""By `ciProvider`: the setting by which the clone has the history."""
