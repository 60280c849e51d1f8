"""Prompts for the tasks that people give to an agent, each with the calls that suffice for it."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from attrs import frozen

from models.errors import Invalid


@frozen
class Prompt:
    """A task. `text` names arguments as `$name`, and the tools that it needs in `tools`."""

    name: str
    title: str
    arguments: Mapping[str, str]
    """What each argument is. All are required."""
    tools: tuple[str, ...]
    text: str

    def filled(self, given: Mapping[str, str]) -> str:
        """The text with the arguments. Raises `Invalid` for one that is missing or unknown."""
        faults = [f"{name} is required" for name in self.arguments if not given.get(name, "").strip()]
        faults += [f"{name[:100]} is not an argument of {self.name}" for name in given if name not in self.arguments]
        if faults:
            raise Invalid("; ".join(faults))
        return Template(self.text).substitute({name: text.strip() for name, text in given.items()})


PROMPTS = (
    Prompt(
        "why_does_it_restart",
        "Why a process restarts",
        {"process": "The name of the process"},
        ("process_info", "process_notices", "process_logs"),
        "Find out why the process $process restarts; change nothing. Call process_info (status, restarts, last"
        " exit), process_notices with process=$process and size=10 (faults and limits), and process_logs with"
        " name=$process and lines=40. Answer: what ended it (exit code, signal, memory limit, health check), since"
        " when and how often, what its log says just before, the most likely cause, and what to look at next.",
    ),
    Prompt(
        "what_broke_the_branch",
        "What broke a branch",
        {"project": "The name of the project", "branch": "The branch, such as main"},
        ("gate_verdict", "run_tests", "run_list"),
        "Find out what broke the branch $branch of the project $project. Call gate_verdict with project=$project"
        " and branch=$branch: its rules name what fails and the commit that it was compared with. Call run_tests"
        " with the runId of the verdict, status=FAILED,ERROR and limit=10, and run_list with project=$project,"
        " branch=$branch and limit=5. Answer: which commit broke it, which tests fail newly and with which"
        " message, who owns them if that is known, and which of them look flaky.",
    ),
    Prompt(
        "is_this_change_safe",
        "Whether a pull request is safe",
        {"project": "The name of the project", "commit": "The commit of the pull request, 7 digits or more"},
        ("gate_verdict", "run_tests"),
        "Judge whether the commit $commit of the project $project is safe to merge. Call gate_verdict with"
        " project=$project and commit=$commit, and only where a rule about tests fails, run_tests with its runId,"
        " status=FAILED,ERROR and limit=10. Answer yes or no first; then the rules that fail, in words, new"
        " failures against known ones, the coverage of the changed lines, and what has not been reported yet"
        " (complete: false is not a yes).",
    ),
    Prompt(
        "upgrade_a_release",
        "Upgrade a release safely",
        {"release": "The name of the release", "namespace": "Its namespace"},
        ("helm_upgrades", "helm_diff_upgrade", "helm_upgrade"),
        "Upgrade the release $release in the namespace $namespace safely. Call helm_upgrades with name=$release"
        " and namespace=$namespace, choose the newest version (say so where its major number differs), and call"
        " helm_diff_upgrade with that chartRef and version. Show what changes, object by object, and what could"
        " interrupt the service, and wait for a yes. Only then call helm_upgrade with the same arguments and"
        " atomic=true, and report the revision, or why it was rolled back.",
    ),
    Prompt(
        "what_changed",
        "What changed on this host lately",
        {"hours": "How many hours to look back"},
        ("process_notices", "helm_list", "project_list"),
        "Report what changed on this host in the last $hours hours, newest first. Call process_notices with"
        " size=15, helm_list with allNamespaces=true, sort=-updated and limit=10, and project_list with limit=10"
        " (each has its newest run). Leave out what is older. Group the answer by processes, releases and test"
        " results, faults first, and say which of them may belong together because they are minutes apart.",
    ),
)
