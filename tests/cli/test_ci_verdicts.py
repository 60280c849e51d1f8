"""The uploader under the variables of each CI system, in histories whose verdict was wrong once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import Server
from http_checks import running_server
from uploader import run_upload

from supervisor.cli.ci_systems import SYSTEMS

Variables = Mapping[str, str]

PUSHES: dict[str, Variables] = {
    "github": {"GITHUB_ACTIONS": "true", "GITHUB_REF": "refs/heads/{branch}", "GITHUB_REF_NAME": "{branch}",
               "GITHUB_SHA": "{sha}", "GITHUB_RUN_ID": "{n}", "GITHUB_JOB": "t", "RUNNER_TRACKING_ID": "r{n}"},
    "gitlab": {"GITLAB_CI": "true", "CI_COMMIT_REF_NAME": "{branch}", "CI_COMMIT_SHA": "{sha}",
               "CI_PIPELINE_ID": "{n}", "CI_JOB_ID": "{n}", "CI_JOB_NAME": "t"},
    "jenkins": {"JENKINS_URL": "https://j/", "BRANCH_NAME": "{branch}", "GIT_COMMIT": "{sha}",
                "BUILD_TAG": "jenkins-r-{n}"},
    "circleci": {"CIRCLECI": "true", "CIRCLE_BRANCH": "{branch}", "CIRCLE_SHA1": "{sha}", "CIRCLE_JOB": "t",
                 "CIRCLE_WORKFLOW_ID": "w{n}", "CIRCLE_BUILD_NUM": "{n}"},
    "buildkite": {"BUILDKITE": "true", "BUILDKITE_BRANCH": "{branch}", "BUILDKITE_COMMIT": "{sha}",
                  "BUILDKITE_BUILD_ID": "b{n}", "BUILDKITE_STEP_ID": "t", "BUILDKITE_PULL_REQUEST": "false"},
    "azure": {"TF_BUILD": "True", "BUILD_SOURCEBRANCH": "refs/heads/{branch}", "BUILD_SOURCEVERSION": "{sha}",
              "BUILD_BUILDID": "{n}", "SYSTEM_STAGENAME": "t"},
    "bitbucket": {"BITBUCKET_BUILD_NUMBER": "{n}", "BITBUCKET_BRANCH": "{branch}", "BITBUCKET_COMMIT": "{sha}"},
    "teamcity": {"TEAMCITY_VERSION": "2025", "BUILD_VCS_NUMBER": "{sha}",
                 "TEAMCITY_BUILD_PROPERTIES_FILE": "{properties}"},
    "travis": {"TRAVIS": "true", "TRAVIS_BRANCH": "{branch}", "TRAVIS_COMMIT": "{sha}", "TRAVIS_BUILD_ID": "{n}",
               "TRAVIS_PULL_REQUEST": "false"},
    "woodpecker": {"CI": "woodpecker", "CI_COMMIT_BRANCH": "{branch}", "CI_COMMIT_SHA": "{sha}",
                   "CI_PIPELINE_NUMBER": "{n}"},
    "drone": {"DRONE": "true", "DRONE_BRANCH": "{branch}", "DRONE_COMMIT_SHA": "{sha}", "DRONE_BUILD_NUMBER": "{n}"},
    "appveyor": {"APPVEYOR": "True", "APPVEYOR_REPO_BRANCH": "{branch}", "APPVEYOR_REPO_COMMIT": "{sha}",
                 "APPVEYOR_BUILD_ID": "{n}"},
    "semaphore": {"SEMAPHORE": "true", "SEMAPHORE_GIT_BRANCH": "{branch}", "SEMAPHORE_GIT_SHA": "{sha}",
                  "SEMAPHORE_WORKFLOW_ID": "w{n}"},
    "cirrus": {"CIRRUS_CI": "true", "CIRRUS_BRANCH": "{branch}", "CIRRUS_CHANGE_IN_REPO": "{sha}",
               "CIRRUS_BUILD_ID": "{n}"},
    "codebuild": {"CODEBUILD_BUILD_ID": "r:{n}", "CODEBUILD_WEBHOOK_TRIGGER": "branch/{branch}",
                  "CODEBUILD_RESOLVED_SOURCE_VERSION": "{sha}"},
    "codefresh": {"CF_BUILD_ID": "{n}", "CF_BRANCH": "{branch}", "CF_REVISION": "{sha}"},
    "google-cloud-build": {"BUILDER_OUTPUT": "/out", "BUILD_ID": "{n}", "BRANCH_NAME": "{branch}",
                           "COMMIT_SHA": "{sha}"},
}  # fmt: skip
"""A push to a branch."""

PULL_REQUESTS: dict[str, Variables] = {
    "github": {"GITHUB_REF": "refs/pull/3/merge", "GITHUB_HEAD_REF": "main", "GITHUB_BASE_REF": "main"},
    "gitlab": {"CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "main", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
               "CI_MERGE_REQUEST_IID": "3", "CI_MERGE_REQUEST_SOURCE_PROJECT_PATH": "me/r",
               "CI_MERGE_REQUEST_PROJECT_PATH": "o/r"},
    "jenkins": {"CHANGE_ID": "3", "CHANGE_BRANCH": "main", "CHANGE_TARGET": "main", "CHANGE_FORK": "me"},
    "circleci": {"CIRCLE_PR_NUMBER": "3", "CIRCLE_PR_USERNAME": "me", "CIRCLE_PR_REPONAME": "r"},
    "buildkite": {"BUILDKITE_PULL_REQUEST": "3", "BUILDKITE_PULL_REQUEST_BASE_BRANCH": "main",
                  "BUILDKITE_REPO": "git@h:o/r.git", "BUILDKITE_PULL_REQUEST_REPO": "git://h/me/r.git"},
    "azure": {"SYSTEM_PULLREQUEST_SOURCEBRANCH": "refs/heads/main", "SYSTEM_PULLREQUEST_ISFORK": "True",
              "SYSTEM_PULLREQUEST_TARGETBRANCH": "refs/heads/main", "SYSTEM_PULLREQUEST_PULLREQUESTID": "3",
              "SYSTEM_PULLREQUEST_SOURCEREPOSITORYURI": "https://h/me/r"},
    "bitbucket": {"BITBUCKET_PR_ID": "3", "BITBUCKET_PR_DESTINATION_BRANCH": "main"},
    "teamcity": {},
    "travis": {"TRAVIS_PULL_REQUEST": "3", "TRAVIS_PULL_REQUEST_BRANCH": "main", "TRAVIS_PULL_REQUEST_SLUG": "me/r",
               "TRAVIS_REPO_SLUG": "o/r", "TRAVIS_PULL_REQUEST_SHA": "{sha}"},
    "woodpecker": {"CI_COMMIT_PULL_REQUEST": "3", "CI_COMMIT_SOURCE_BRANCH": "main",
                   "CI_COMMIT_TARGET_BRANCH": "main"},
    "drone": {"DRONE_PULL_REQUEST": "3", "DRONE_SOURCE_BRANCH": "main", "DRONE_TARGET_BRANCH": "main"},
    "appveyor": {"APPVEYOR_PULL_REQUEST_NUMBER": "3", "APPVEYOR_PULL_REQUEST_HEAD_REPO_BRANCH": "main",
                 "APPVEYOR_PULL_REQUEST_HEAD_REPO_NAME": "me/r", "APPVEYOR_REPO_NAME": "o/r"},
    "semaphore": {"SEMAPHORE_GIT_PR_NUMBER": "3", "SEMAPHORE_GIT_PR_BRANCH": "main", "SEMAPHORE_GIT_PR_SLUG": "me/r",
                  "SEMAPHORE_GIT_REPO_SLUG": "o/r", "SEMAPHORE_GIT_PR_SHA": "{sha}"},
    "cirrus": {"CIRRUS_BRANCH": "pull/3", "CIRRUS_PR": "3", "CIRRUS_BASE_BRANCH": "main"},
    "codebuild": {"CODEBUILD_WEBHOOK_TRIGGER": "pr/3", "CODEBUILD_WEBHOOK_HEAD_REF": "refs/heads/main",
                  "CODEBUILD_WEBHOOK_BASE_REF": "refs/heads/main"},
    "codefresh": {"CF_PULL_REQUEST_NUMBER": "3", "CF_PULL_REQUEST_TARGET": "main", "CF_PULL_REQUEST_IS_FORK": "true"},
    "google-cloud-build": {"_PR_NUMBER": "3", "_HEAD_BRANCH": "main", "_BASE_BRANCH": "main", "REPO_FULL_NAME": "o/r",
                           "_HEAD_REPO_URL": "https://h/me/r"},
}  # fmt: skip
"""What a pull request adds to that, whose source is `main`: of a fork, where the system reports it."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("verdicts")) as server:
        yield server


class Pipeline:
    """Runs jobs of one CI system, each with its own build."""

    def __init__(self, server: Server, folder: Path, provider: str) -> None:
        self._server = server
        self._folder = folder
        self._provider = provider
        self._builds = itertools.count(100)

    def run(self, commit: str, failed: str = "", branch: str = "main", is_pull_request: bool = False) -> str:
        """The gate's status of a job whose tests are `a` and `b`, of which the named ones fail."""
        build = next(self._builds)
        cases = "".join(f'<testcase name="{name}">{"<failure/>" if name in failed else ""}</testcase>' for name in "ab")
        (self._folder / "junit.xml").write_text(f"<testsuite name='s' id='{build}'>{cases}</testsuite>")
        values = {"branch": branch, "sha": commit * 40, "n": str(build)}
        values["properties"] = self._properties(build, branch, is_pull_request)
        variables = dict(PUSHES[self._provider]) | dict(PULL_REQUESTS[self._provider] if is_pull_request else {})
        environ = {name: value.format(**values) for name, value in variables.items()}
        done = run_upload(
            self._folder, self._server, "--project", self._provider, "--junit", "junit.xml", "--complete", "--gate",
            "--diff", "off", environ=environ, is_checkout=False,
        )  # fmt: skip
        status = done.stdout.splitlines()[-1].removeprefix("gate: ") if done.stdout else done.stderr
        assert done.returncode == {"PASSED": 0, "FAILED": 1}.get(status), done
        return status

    def _properties(self, build: int, branch: str, is_pull_request: bool) -> str:
        """A file as TeamCity writes it."""
        lines = [f"teamcity.build.id={build}", f"teamcity.build.branch={branch}"]
        if is_pull_request:
            lines += ["teamcity.pullRequest.number=3", "teamcity.pullRequest.source.branch=main"]
            lines += ["teamcity.pullRequest.target.branch=main"]
        file = self._folder / "build.properties"
        file.write_text("\n".join(lines))
        return str(file)

    def gate(self, query: str) -> str:
        return str(self._server.get(f"/api/v1/gate?project={self._provider}&{query}").json["status"])


@pytest.mark.parametrize("provider", PUSHES)
def test_the_verdict_is_right_under_the_variables_of_each_ci_system(
    server: Server, tmp_path: Path, provider: str
) -> None:
    pipeline = Pipeline(server, tmp_path, provider)
    run = pipeline.run
    assert run("1") == "PASSED"
    assert run("2", "a") == "FAILED"
    assert run("2", "a") == "FAILED"  # again, in another build: its own first run was its baseline
    assert run("1") == "PASSED"  # an old commit again: it became the baseline of those that follow
    assert run("3", "a") == "PASSED"  # `a` failed in the commit before
    assert run("4", branch="release") == "PASSED"
    assert run("4", "ab") == "FAILED"  # the same commit on main
    assert (pipeline.gate("branch=main"), pipeline.gate("branch=release")) == ("FAILED", "PASSED")
    assert run("5", branch="topic") == "PASSED"
    run("6", "ab", is_pull_request=True)
    assert run("7", branch="main") == "PASSED"
    run("8", "b", is_pull_request=True)
    assert run("9", "b") == "FAILED"  # in the pull request `b` failed too, on a branch of the same name


def test_each_system_is_tried() -> None:
    assert set(PUSHES) == set(PULL_REQUESTS) == {system.provider for system in SYSTEMS}
