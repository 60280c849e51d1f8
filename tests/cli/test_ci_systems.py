"""The facts of each CI system, as its documentation describes its variables, and the base of a checked-out merge."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_upload import git

from supervisor.cli.changed_lines import NoDiff, changed_lines, pushed_commit
from supervisor.cli.ci_systems import SYSTEMS, depth_setting, facts

SHA, MERGE = "a" * 40, "b" * 40
FACTS = ("branch", "commit", "prNumber", "baseBranch", "headRepo", "runKey", "jobKey", "attempt", "buildUrl")

CASES: dict[str, tuple[dict[str, str], tuple[str | None, ...]]] = {
    "github": (
        {"GITHUB_ACTIONS": "true", "GITHUB_REF": "refs/heads/main", "GITHUB_REF_NAME": "main", "GITHUB_SHA": SHA,
         "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "7",
         "GITHUB_RUN_ATTEMPT": "2", "GITHUB_JOB": "test"},
        ("main", SHA, None, None, None, "github-7", "test", "2", "https://github.com/o/r/actions/runs/7"),
    ),
    "forgejo pull request": (
        {"GITHUB_ACTIONS": "true", "FORGEJO_ACTIONS": "true", "GITHUB_REF": "refs/pull/3/merge", "GITHUB_SHA": SHA,
         "GITHUB_HEAD_REF": "topic", "GITHUB_BASE_REF": "main", "GITHUB_SERVER_URL": "https://code.example",
         "GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "70", "GITHUB_RUN_NUMBER": "7"},
        ("topic", SHA, "3", "main", None, "github-70", None, None, "https://code.example/o/r/actions/runs/7"),
    ),
    "gitea": (
        {"GITHUB_ACTIONS": "true", "GITEA_ACTIONS": "true", "GITHUB_REF_NAME": "main", "GITHUB_SHA": SHA,
         "GITHUB_SERVER_URL": "https://code.example", "GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "70"},
        ("main", SHA, None, None, None, "github-70", None, None, "https://code.example/o/r/actions/runs/70"),
    ),
    "gitlab fork": (
        {"GITLAB_CI": "true", "CI_COMMIT_SHA": MERGE, "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": SHA,
         "CI_MERGE_REQUEST_IID": "3", "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "main",
         "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main", "CI_MERGE_REQUEST_SOURCE_PROJECT_PATH": "me/r",
         "CI_MERGE_REQUEST_PROJECT_PATH": "o/r", "CI_PIPELINE_ID": "7", "CI_JOB_NAME": "unit", "CI_JOB_ID": "9",
         "CI_JOB_URL": "https://gitlab/j/9"},
        ("me:main", SHA, "3", "main", "me/r", "gitlab-7", "unit", "9", "https://gitlab/j/9"),
    ),
    "jenkins fork": (
        {"JENKINS_URL": "https://jenkins/", "CHANGE_ID": "3", "CHANGE_BRANCH": "topic", "CHANGE_TARGET": "main",
         "CHANGE_FORK": "me", "BRANCH_NAME": "PR-3", "GIT_COMMIT": SHA, "BUILD_TAG": "jenkins-r-PR-3-7",
         "STAGE_NAME": "Unit", "BUILD_URL": "https://jenkins/job/r/7/"},
        ("me:topic", SHA, "3", "main", "me", "jenkins-r-PR-3-7", "Unit", None, "https://jenkins/job/r/7/"),
    ),
    "circleci fork": (
        {"CIRCLECI": "true", "CIRCLE_BRANCH": "pull/3", "CIRCLE_SHA1": SHA, "CIRCLE_PR_NUMBER": "3",
         "CIRCLE_PR_USERNAME": "me", "CIRCLE_PR_REPONAME": "r", "CIRCLE_WORKFLOW_ID": "w", "CIRCLE_JOB": "unit",
         "CIRCLE_NODE_INDEX": "0", "CIRCLE_BUILD_NUM": "7", "CIRCLE_BUILD_URL": "https://circle/7"},
        ("pull/3", SHA, "3", None, "me/r", "circleci-w", "unit#0", "7", "https://circle/7"),
    ),
    "buildkite fork": (
        {"BUILDKITE": "true", "BUILDKITE_BRANCH": "me:topic", "BUILDKITE_COMMIT": SHA, "BUILDKITE_PULL_REQUEST": "3",
         "BUILDKITE_PULL_REQUEST_BASE_BRANCH": "main", "BUILDKITE_REPO": "git@github.com:o/r.git",
         "BUILDKITE_PULL_REQUEST_REPO": "git://github.com/me/r.git", "BUILDKITE_BUILD_ID": "b",
         "BUILDKITE_STEP_ID": "s", "BUILDKITE_RETRY_COUNT": "1", "BUILDKITE_BUILD_URL": "https://bk/7"},
        ("me:topic", SHA, "3", "main", "git://github.com/me/r.git", "buildkite-b", "s", "1", "https://bk/7"),
    ),
    "azure fork": (
        {"TF_BUILD": "True", "BUILD_SOURCEBRANCH": "refs/pull/3/merge", "BUILD_SOURCEVERSION": MERGE,
         "SYSTEM_PULLREQUEST_SOURCEBRANCH": "refs/heads/topic", "SYSTEM_PULLREQUEST_SOURCECOMMITID": SHA,
         "SYSTEM_PULLREQUEST_TARGETBRANCH": "refs/heads/main", "SYSTEM_PULLREQUEST_PULLREQUESTNUMBER": "3",
         "SYSTEM_PULLREQUEST_ISFORK": "True",
         "SYSTEM_PULLREQUEST_SOURCEREPOSITORYURI": "https://github.com/me/r", "BUILD_BUILDID": "7",
         "SYSTEM_COLLECTIONURI": "https://dev.azure.com/o/", "SYSTEM_TEAMPROJECT": "p", "SYSTEM_STAGENAME": "t",
         "SYSTEM_STAGEATTEMPT": "1", "SYSTEM_JOBATTEMPT": "2"},
        ("me:topic", SHA, "3", "main", "https://github.com/me/r", "azure-7", "t", "1002",
         "https://dev.azure.com/o/p/_build/results?buildId=7"),
    ),
    "bitbucket": (
        {"BITBUCKET_BUILD_NUMBER": "7", "BITBUCKET_BRANCH": "topic", "BITBUCKET_COMMIT": SHA, "BITBUCKET_PR_ID": "3",
         "BITBUCKET_PR_DESTINATION_BRANCH": "main", "BITBUCKET_REPO_FULL_NAME": "o/r",
         "BITBUCKET_PIPELINE_UUID": "{p-1}", "BITBUCKET_STEP_UUID": "{s-1}", "BITBUCKET_PARALLEL_STEP": "0",
         "BITBUCKET_STEP_RUN_NUMBER": "2"},
        ("topic", SHA, "3", "main", None, "bitbucket-p-1", "{s-1}/0", "2",
         "https://bitbucket.org/o/r/pipelines/results/7"),
    ),
    "travis": (
        {"TRAVIS": "true", "TRAVIS_BRANCH": "main", "TRAVIS_COMMIT": SHA, "TRAVIS_PULL_REQUEST": "false",
         "TRAVIS_BUILD_ID": "7", "TRAVIS_JOB_NUMBER": "4.2", "TRAVIS_REPO_SLUG": "o/r",
         "TRAVIS_JOB_WEB_URL": "https://travis/jobs/9"},
        ("main", SHA, None, None, None, "travis-7", "2", None, "https://travis/jobs/9"),
    ),
    "travis fork": (
        {"TRAVIS": "true", "TRAVIS_BRANCH": "main", "TRAVIS_COMMIT": MERGE, "TRAVIS_PULL_REQUEST": "3",
         "TRAVIS_PULL_REQUEST_BRANCH": "main", "TRAVIS_PULL_REQUEST_SHA": SHA, "TRAVIS_PULL_REQUEST_SLUG": "me/r",
         "TRAVIS_REPO_SLUG": "o/r", "TRAVIS_BUILD_ID": "7"},
        ("me:main", SHA, "3", "main", "me/r", "travis-7", None, None, None),
    ),
    "drone": (
        {"DRONE": "true", "DRONE_BRANCH": "main", "DRONE_SOURCE_BRANCH": "topic", "DRONE_TARGET_BRANCH": "main",
         "DRONE_PULL_REQUEST": "3", "DRONE_COMMIT_SHA": SHA, "DRONE_REPO": "o/r", "DRONE_BUILD_NUMBER": "7",
         "DRONE_STAGE_NAME": "test", "DRONE_STEP_NAME": "unit", "DRONE_BUILD_LINK": "https://drone/o/r/7"},
        ("topic", SHA, "3", "main", None, "drone-o/r/7", "test/unit", None, "https://drone/o/r/7"),
    ),
    "woodpecker": (
        {"CI": "woodpecker", "DRONE": "true", "CI_COMMIT_BRANCH": "main", "CI_COMMIT_SOURCE_BRANCH": "topic",
         "CI_COMMIT_TARGET_BRANCH": "main", "CI_COMMIT_PULL_REQUEST": "3", "CI_COMMIT_SHA": SHA, "CI_REPO": "o/r",
         "CI_PIPELINE_NUMBER": "7", "CI_WORKFLOW_NAME": "test", "CI_WORKFLOW_NUMBER": "1", "CI_STEP_NAME": "unit",
         "CI_PIPELINE_URL": "https://wp/7"},
        ("topic", SHA, "3", "main", None, "woodpecker-o/r/7", "test/1/unit", None, "https://wp/7"),
    ),
    "appveyor fork": (
        {"APPVEYOR": "True", "APPVEYOR_REPO_BRANCH": "main", "APPVEYOR_REPO_COMMIT": MERGE,
         "APPVEYOR_PULL_REQUEST_NUMBER": "3", "APPVEYOR_PULL_REQUEST_HEAD_REPO_BRANCH": "topic",
         "APPVEYOR_PULL_REQUEST_HEAD_REPO_NAME": "me/r", "APPVEYOR_PULL_REQUEST_HEAD_COMMIT": SHA,
         "APPVEYOR_REPO_NAME": "o/r", "APPVEYOR_BUILD_ID": "7", "APPVEYOR_JOB_NUMBER": "2",
         "APPVEYOR_ACCOUNT_NAME": "o", "APPVEYOR_PROJECT_SLUG": "r"},
        ("me:topic", SHA, "3", "main", "me/r", "appveyor-7", "2", None, "https://ci.appveyor.com/project/o/r/builds/7"),
    ),
    "semaphore fork": (
        {"SEMAPHORE": "true", "SEMAPHORE_GIT_BRANCH": "main", "SEMAPHORE_GIT_SHA": MERGE, "SEMAPHORE_GIT_PR_SHA": SHA,
         "SEMAPHORE_GIT_PR_NUMBER": "3", "SEMAPHORE_GIT_PR_BRANCH": "topic", "SEMAPHORE_GIT_PR_SLUG": "me/r",
         "SEMAPHORE_GIT_REPO_SLUG": "o/r", "SEMAPHORE_WORKFLOW_ID": "w", "SEMAPHORE_JOB_NAME": "unit",
         "SEMAPHORE_JOB_INDEX": "2", "SEMAPHORE_ORGANIZATION_URL": "https://o.semaphoreci.com"},
        ("me:topic", SHA, "3", "main", "me/r", "semaphore-w", "unit/2", None, "https://o.semaphoreci.com/workflows/w"),
    ),
    "cirrus": (
        {"CIRRUS_CI": "true", "CIRRUS_BRANCH": "pull/3", "CIRRUS_BASE_BRANCH": "main", "CIRRUS_PR": "3",
         "CIRRUS_CHANGE_IN_REPO": SHA, "CIRRUS_BUILD_ID": "7", "CIRRUS_TASK_ID": "9", "CIRRUS_TASK_NAME": "unit",
         "CIRRUS_REPO_FULL_NAME": "o/r"},
        ("pull/3", SHA, "3", "main", None, "cirrus-7", "unit", None, "https://cirrus-ci.com/task/9"),
    ),
    "codebuild": (
        {"CODEBUILD_BUILD_ID": "shop:7", "CODEBUILD_RESOLVED_SOURCE_VERSION": SHA, "CODEBUILD_SOURCE_VERSION": "pr/3",
         "CODEBUILD_WEBHOOK_TRIGGER": "pr/3", "CODEBUILD_WEBHOOK_HEAD_REF": "refs/heads/topic",
         "CODEBUILD_WEBHOOK_BASE_REF": "refs/heads/main", "CODEBUILD_BUILD_URL": "https://aws/7",
         "CODEBUILD_BATCH_BUILD_IDENTIFIER": "linux"},
        ("topic", SHA, "3", "main", None, "codebuild-shop:7", "linux", None, "https://aws/7"),
    ),
    "codebuild by hand": (
        {"CODEBUILD_BUILD_ID": "shop:8", "CODEBUILD_RESOLVED_SOURCE_VERSION": SHA,
         "CODEBUILD_SOURCE_VERSION": "refs/heads/main"},
        ("main", SHA, None, None, None, "codebuild-shop:8", None, None, None),
    ),
    "google-cloud-build fork": (
        {"BUILDER_OUTPUT": "/builder/outputs", "BUILD_ID": "7", "PROJECT_ID": "p", "LOCATION": "global",
         "COMMIT_SHA": SHA, "BRANCH_NAME": "topic", "REPO_FULL_NAME": "o/r", "_PR_NUMBER": "3",
         "_HEAD_BRANCH": "topic", "_BASE_BRANCH": "main", "_HEAD_REPO_URL": "https://github.com/me/r"},
        ("me:topic", SHA, "3", "main", "https://github.com/me/r", "google-7", None, None,
         "https://console.cloud.google.com/cloud-build/builds;region=global/7?project=p"),
    ),
    "codefresh fork": (
        {"CF_BUILD_ID": "7", "CF_BRANCH": "topic", "CF_REVISION": SHA, "CF_PULL_REQUEST_NUMBER": "3",
         "CF_PULL_REQUEST_TARGET": "main", "CF_PULL_REQUEST_IS_FORK": "true", "CF_STEP_NAME": "unit",
         "CF_BUILD_URL": "https://g.codefresh.io/build/7"},
        ("fork:topic", SHA, "3", "main", "fork", "codefresh-7", "unit", None, "https://g.codefresh.io/build/7"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_facts_of_a_ci_system(case: str) -> None:
    environ, wanted = CASES[case]
    found = facts(environ)
    assert found["ciProvider"] == case.split(" ")[0]
    assert tuple(map(found.get, FACTS)) == wanted


def test_teamcity_is_read_from_its_files_of_properties(tmp_path: Path) -> None:
    """TeamCity passes few variables; the build's parameters are in a file that names another."""
    build, config = tmp_path / "build.properties", tmp_path / "config.properties"
    escaped = str(config).replace(":", "\\:")
    build.write_text(f"#TeamCity\nteamcity.build.id=7\nteamcity.configuration.properties.file={escaped}\n")
    config.write_text(
        "teamcity.build.branch=<default>\nteamcity.build.vcs.branch.Shop=refs/heads/main\n"
        "vcsroot.url=https\\://user\\:secret@git.example/o/r.git\n"
    )
    environ = {"TEAMCITY_VERSION": "2025.03", "TEAMCITY_BUILD_PROPERTIES_FILE": str(build), "BUILD_VCS_NUMBER": SHA}
    environ |= {"TEAMCITY_BUILDCONF_NAME": "Unit", "BUILD_URL": "https://tc/build/7"}
    assert facts(environ) == {
        "ciProvider": "teamcity", "branch": "main", "commit": SHA, "repoUrl": "https://git.example/o/r.git",
        "buildUrl": "https://tc/build/7", "buildName": "Unit", "runKey": "teamcity-7", "jobKey": "Unit",
    }  # fmt: skip
    with config.open("a") as file:
        file.write("teamcity.pullRequest.number=3\nteamcity.pullRequest.source.branch=topic\n")
        file.write("teamcity.pullRequest.target.branch=refs/heads/main\n")
    found = facts(environ)
    assert (found["branch"], found["prNumber"], found["baseBranch"]) == ("topic", "3", "main")
    assert facts({"TEAMCITY_VERSION": "2025.03", "TEAMCITY_BUILD_PROPERTIES_FILE": "/nowhere"}) == {
        "ciProvider": "teamcity"
    }


def test_each_system_has_a_case_a_source_and_a_hint_on_the_depth_of_its_clone() -> None:
    """Forgejo and Gitea set the variables of GitHub Actions, and TeamCity has a test of its own."""
    named = {case.split(" ")[0] for case in CASES} - {"forgejo", "gitea"} | {"teamcity"}
    assert named == {system.provider for system in SYSTEMS}
    for system in SYSTEMS:
        assert "https://" in (system.read.__doc__ or "")
        assert depth_setting(system.provider) == system.depth
    assert depth_setting("forgejo") == "Forgejo Actions: `fetch-depth: 0`"
    assert depth_setting("") == "GitHub Actions: `fetch-depth: 0`; GitLab CI: `GIT_DEPTH: 0`"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A work tree with `main` and `topic`, which has the change of a file; the commits by name."""
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q", "-b", "main")
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text("1\n")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-qm", name)
    git(tmp_path, "checkout", "-qb", "topic")
    (tmp_path / "first.py").write_text("1\n2\n")
    git(tmp_path, "commit", "-qam", "topic")
    git(tmp_path, "checkout", "-q", "main")
    (tmp_path / "second.py").write_text("1\n3\n")
    git(tmp_path, "commit", "-qam", "main goes on")
    return {name: git(tmp_path, "rev-parse", name).strip() for name in ("main", "topic", "main^", "main~2")}


def diff_of(base_branch: str, commit: str, environ: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(changed_lines(base_branch, commit, environ)[0])
    return found


@pytest.mark.parametrize("into", ["main", "topic"])
def test_a_merge_of_the_pushed_commit_is_compared_with_its_other_parent(
    checkout: dict[str, str], tmp_path: Path, into: str
) -> None:
    """GitLab, Azure and Jenkins merge the request into its target, Bitbucket the target into the request."""
    git(tmp_path, "checkout", "-q", "--detach", into)
    git(tmp_path, "merge", "-q", "--no-edit", "topic" if into == "main" else "main")
    found = diff_of("not in the clone", checkout["topic"], {})
    assert (found["base"], found["files"]) == (checkout["main"], {"first.py": [[2, 2]]})
    assert found["baseCommits"] == [checkout["main^"], checkout["main~2"]]


def test_the_merge_of_jenkins_stands_for_the_pushed_commit(checkout: dict[str, str], tmp_path: Path) -> None:
    """The GitHub and Bitbucket plugins merge the target into the request, and name the merge in GIT_COMMIT."""
    jenkins = {"JENKINS_URL": "https://jenkins/", "CHANGE_ID": "3"}
    git(tmp_path, "checkout", "-q", "--detach", "topic")
    git(tmp_path, "merge", "-q", "--no-edit", checkout["main"])
    merge = git(tmp_path, "rev-parse", "HEAD").strip()
    assert pushed_commit(merge, jenkins) == checkout["topic"]
    assert diff_of("main", checkout["topic"], jenkins)["base"] == checkout["main"]
    assert pushed_commit(merge, {"JENKINS_URL": "https://jenkins/"}) == merge
    assert pushed_commit(checkout["topic"], jenkins) == checkout["topic"]
    git(tmp_path, "commit", "-q", "--amend", "-m", "Merge branch 'main' into topic")
    own = git(tmp_path, "rev-parse", "HEAD").strip()
    assert pushed_commit(own, jenkins) == own


def test_a_pushed_merge_is_compared_with_the_merge_base(checkout: dict[str, str], tmp_path: Path) -> None:
    git(tmp_path, "checkout", "-q", "topic")
    git(tmp_path, "merge", "-q", "--no-edit", "main^")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "more")
    git(tmp_path, "merge", "-q", "--no-edit", "main")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    assert diff_of("main", head, {})["base"] == checkout["main"]


def test_gitlab_names_a_commit_of_the_target_where_the_clone_has_no_branch(checkout: dict[str, str]) -> None:
    git(Path.cwd(), "checkout", "-q", "topic")
    environ = {"GITLAB_CI": "true", "CI_MERGE_REQUEST_DIFF_BASE_SHA": checkout["main^"]}
    assert diff_of("elsewhere", checkout["topic"], environ)["base"] == checkout["main^"]
    with pytest.raises(NoDiff, match=r"fetch more history \(GitLab CI: `GIT_DEPTH: 0`\)"):
        diff_of("elsewhere", checkout["topic"], {**environ, "CI_MERGE_REQUEST_DIFF_BASE_SHA": MERGE})
    for system in SYSTEMS:
        name, _, value = system.variable.partition("=")
        with pytest.raises(NoDiff, match=re.escape(f"fetch more history ({system.depth})")):
            diff_of("elsewhere", checkout["topic"], {name: value or "true"})
