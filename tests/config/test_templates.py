"""Replicas, variables, environment files and included files, as the loader reads them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import open_for_writing, wait_for

from models.config import env_files
from models.config.env_files import EnvFileError
from models.config.loader import load
from models.config.settings import BadConfig, Config
from models.supervision.process import Seconds

Read = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def loaded(text: str, environ: dict[str, str] | None = None, **files: str) -> Config:
        (tmp_path / "conf.d").mkdir(exist_ok=True)
        for name, content in files.items():
            (tmp_path / "conf.d" / f"{name}.yaml").write_text(content)
        (tmp_path / "pilothouse.yaml").write_text(text)
        return load(tmp_path / "pilothouse.yaml", environ or {})

    return loaded


def faults(read: Read, text: str, **files: str) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        read(text, **files)
    return list(caught.value.faults)


# Replicas


def test_a_template_is_expanded_to_its_replicas(read: Read) -> None:
    config = read("""
        supervisor:
          groups: {all-workers: [worker], web-and: ["web", "worker-1*"]}
          processes:
            web: {command: run, depends-on: [worker]}
            worker:
              command: ["work", "--port", "${{ num + 9000 }}", "${{ process }}/${{ numprocs }}"]
              numprocs: 3
              numprocs-start: 9
              stdout-logfile: "logs/${{ name }}-${{ num:02d }}.log"
            last: {command: run}
    """)
    specs = config.supervisor.processes
    assert list(specs) == ["web", "worker-9", "worker-10", "worker-11", "last"]
    assert specs["worker-10"].command == ("work", "--port", "9010", "worker-10/3")
    assert specs["worker-9"].stdout_logfile == "logs/worker-09.log"
    assert [one.process for one in specs["web"].depends_on] == ["worker-9", "worker-10", "worker-11"]
    assert specs["worker-9"].groups == ("worker",)
    assert specs["worker-9"].template == "worker"


def test_one_replica_is_a_template_too_and_its_name_can_be_chosen(read: Read) -> None:
    text = 'supervisor.processes.w: {command: run, numprocs: 1, process-name: "${{ name }}_${{ num:03d }}"}'
    assert list(read(text).supervisor.processes) == ["w_000"]


@pytest.mark.parametrize(
    ("properties", "fault"),
    [
        ("numprocs: 0", "supervisor.processes.w: numprocs: '0' is not between 1 and 1000"),
        ("numprocs: 1001", "supervisor.processes.w: numprocs: '1001' is not between 1 and 1000"),
        ("numprocs: many", "supervisor.processes.w: numprocs: 'many' is not a whole number"),
        ("numprocs: 2, numprocs-start: 65536", "numprocs-start: '65536' is not between 0 and 65535"),
        ("numprocs-start: 1", "supervisor.processes.w: numprocs-start needs numprocs"),
        ("numprocs: 2, process-name: same", "process-name: two replicas are called 'same'"),
        ('numprocs: 2, process-name: "other${{ num - 1 }}"', "'other0' is the name of two processes"),
        ("numprocs: 2, stdout-logfile: a.log", "w-0 and w-1 have the same log file 'a.log'"),
        ("args: ['${{ num }}']", "supervisor.processes.w: ${{ num }} needs numprocs"),
        ("args: ['${{ nme }}']", "${{ nme }} is not a variable; there are name, process, here, node, data-dir"),
        ("args: ['${{ env.NOT_SET }}']", "${{ env.NOT_SET }}: the variable NOT_SET is not set"),
        ("args: ['${{ env.SVC_SECURITY_API_KEY }}']", "SVC_SECURITY_API_KEY sets a property of pilothouse"),
    ],
)
def test_an_invalid_template_is_one_error(read: Read, properties: str, fault: str) -> None:
    processes = f"{{other0: {{command: run}}, w: {{command: run, {properties}}}}}"
    (line,) = faults(read, f"supervisor: {{processes: {processes}}}")
    assert fault in line


def test_the_name_of_a_template_is_that_of_a_group(read: Read) -> None:
    (line,) = faults(read, 'supervisor: {processes: {"a b": {command: run, numprocs: 2}}}')
    assert "the name of a template is that of a group" in line


def test_an_error_of_all_replicas_is_reported_once(read: Read) -> None:
    assert faults(read, "supervisor: {processes: {w: {command: run, numprocs: 50, restart: maybe}}}") == [
        "supervisor.processes.w.restart: 'maybe' is not one of never, on-failure, always"
    ]


# Variables


def test_variables_are_expanded_once_in_every_text(read: Read, tmp_path: Path) -> None:
    config = read(
        """
        server: {data-dir: somewhere}
        supervisor:
          processes:
            web:
              command: "run ${{ name }} ${{process}} ${{ node }}"
              args: ["${{ data-dir }}", "${{ here }}", "$${{ name }}", "${{ env.NESTED }}", "${{ env.NONE | a b }}"]
              environment: {PORT: "${{ env.PORT }}"}
              labels: ["host=${{ node }}"]
              stop-timeout: "${{ env.STOP | 5s }}"
              health-check: {http: {url: "http://127.0.0.1:${{ env.PORT }}/"}}
        """,
        {"NESTED": "${{ name }}", "PORT": "9000"},
    )
    web = config.supervisor.processes["web"]
    node = platform.node()
    assert web.command == ("run", "web", "web", node)
    assert web.args == ("somewhere", str(tmp_path), "${{ name }}", "${{ name }}", "a b")
    assert web.environment == {"PORT": "9000"}
    assert web.labels == (f"host={node}",)
    assert web.stop_timeout == Seconds(5)
    assert web.health_check is not None
    assert web.health_check.http is not None
    assert web.health_check.http.url == "http://127.0.0.1:9000/"


def test_node_and_data_directory_in_variables_are_the_effective_ones(read: Read) -> None:
    text = 'supervisor: {node-name: here, processes: {web: {command: "run ${{ node }} ${{ data-dir }}"}}}'
    environ = {"SERVER_DATA_DIR": "/elsewhere"}
    assert read(text, environ).supervisor.processes["web"].command == ("run", "here", "/elsewhere")


# Included files


MAIN = "include: ['conf.d/*.yaml']\nsupervisor: {groups: {both: [web]}, processes: {web: {command: run}}}\n"


def test_included_files_add_processes_and_groups_in_the_order_of_their_names(read: Read, tmp_path: Path) -> None:
    config = read(
        MAIN,
        b="supervisor.processes.b.command: 'run ${{ here }}'\n",
        a="supervisor:\n  groups: {both: [a], own: a}\n  processes:\n    a: {command: run}\n",
    )
    assert list(config.supervisor.processes) == ["web", "a", "b"]
    assert config.supervisor.processes["b"].command == ("run", str(tmp_path / "conf.d"))
    assert config.supervisor.groups == {"both": ("web", "a"), "own": ("a",)}


def test_a_glob_may_match_nothing_but_a_path_must_exist(read: Read) -> None:
    assert list(read("include: ['nothing/*.yaml']").supervisor.processes) == []
    assert faults(read, "include: [conf.d/none.yaml]") == ["include: conf.d/none.yaml: there is no such file"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            "supervisor:\n  processes:\n    a:\n      command: run\n      restart: maybe\n",
            "conf.d/a.yaml:5: supervisor.processes.a.restart: 'maybe' is not one of never, on-failure, always",
        ),
        ("\n\nserver: {port: 1}\n", "conf.d/a.yaml:3: server: an included file may hold only supervisor.processes and"),
        ("supervisor:\n  on-exit: leave\n", "conf.d/a.yaml:2: supervisor.on-exit: an included file may hold only"),
        ("include: [x]\n", "conf.d/a.yaml:1: include: an included file may hold only"),
        ("supervisor: {processes: {a: {}}}\n", "conf.d/a.yaml:1: supervisor.processes.a.command: is required"),
        ("a: [\n", "conf.d/a.yaml:2:1: "),
        (
            "supervisor:\n  processes:\n    web: {command: other}\n",
            "conf.d/a.yaml:3: supervisor.processes.web: is given twice: ",
        ),
        ("supervisor.groups: {g: [nope]}\n", "conf.d/a.yaml:1: supervisor.groups.g: 'nope' is not a process"),
    ],
)
def test_an_error_in_an_included_file_names_the_file_and_the_line(read: Read, content: str, fault: str) -> None:
    lines = faults(read, MAIN, a=content)
    assert any(line.startswith(fault) for line in lines), lines


def test_a_process_in_two_files_is_reported_with_both_places(read: Read, tmp_path: Path) -> None:
    (line,) = faults(read, MAIN, a="supervisor:\n  processes:\n    web: {restart: never}\n")
    assert f"{tmp_path}/pilothouse.yaml:2 and conf.d/a.yaml:3" in line


def test_errors_have_no_lines_without_includes(read: Read) -> None:
    assert faults(read, "supervisor: {processes: {web: {}}}") == ["supervisor.processes.web.command: is required"]


# Environment files


def test_a_pipe_is_read_until_it_is_closed_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write() -> None:
        pipe = wait_for(lambda: open_for_writing(path), about="a reader of the pipe")
        os.write(pipe, b"A=1\n")
        os.write(pipe, b"B=2\n")
        os.close(pipe)

    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(write)
        assert env_files.read([str(path)]) == {"A": "1", "B": "2"}
        writer.result()
    monkeypatch.setattr(env_files, "_PIPE_SECONDS", 0.05)
    with pytest.raises(EnvFileError, match=r"is a pipe that nobody wrote to and closed within 0\.05 s"):
        env_files.read([str(path)])
    assert env_files.digest([str(path)]) == env_files.digest([f"{path}.missing"])


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("", {}),
        ("\n  \n# only a comment\n\t# another", {}),
        ("A=1\nB=two words\n", {"A": "1", "B": "two words"}),
        ("A = 1 \r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("\ufeffA=1", {"A": "1"}),
        ("export A=1\nexport\tB=2", {"A": "1", "B": "2"}),
        ("  A=1\n\tB=2", {"A": "1", "B": "2"}),
        ("A=\nB=''\nC=\"\"", {"A": "", "B": "", "C": ""}),
        ("A=b # comment\nC=d#e\nD=#f", {"A": "b", "C": "d#e", "D": ""}),
        ("A='x # y \\n $Z'  # comment", {"A": "x # y \\n $Z"}),
        ('A="a\\nb\\tc\\"d\\\\e\\x"', {"A": 'a\nb\tc"d\\e\\x'}),
        ('A="one\ntwo"\nB=3', {"A": "one\ntwo", "B": "3"}),
        ("A='one\ntwo'", {"A": "one\ntwo"}),
        ("A=$B ${C} `d`\nE=a=b", {"A": "$B ${C} `d`", "E": "a=b"}),
        ("A=1\nA=2", {"A": "2"}),
        ("a.b_c9=1", {"a.b_c9": "1"}),
    ],
)
def test_every_form_of_an_environment_file_is_read(tmp_path: Path, text: str, variables: dict[str, str]) -> None:
    file = tmp_path / "env"
    file.write_bytes(text.encode())
    assert env_files.read([str(file)]) == variables


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"A=1\nsecret\n", ":2: is not KEY=VALUE"),
        (b"A=1\n\n1B=secret", ":3: is not KEY=VALUE"),
        (b"A='secret\nB=2", ":1: the value of A has no closing quote"),
        (b'A="secret" more', ":1: something follows the quoted value of A"),
        (b"A=1\nB=\xffsecret", ":2: is not UTF-8"),
        (b"A=sec\0ret", ":1: the value of A has a NUL"),
        (b"#" * (1024 * 1024 + 1), ": is larger than 1 MiB"),
    ],
)
def test_an_error_in_an_environment_file_names_the_line_and_no_value(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    file = tmp_path / "env"
    file.write_bytes(content)
    with pytest.raises(EnvFileError) as caught:
        env_files.read([str(file)])
    assert str(caught.value) == f"env-file {file}{fault}"
    assert "secret" not in str(caught.value)


def test_later_environment_files_win_and_optional_ones_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A=1\nB=1")
    (tmp_path / "b").write_text("B=2")
    assert env_files.read([str(tmp_path / "a"), f"-{tmp_path}/none", f"-{tmp_path}/b"]) == {"A": "1", "B": "2"}
    with pytest.raises(EnvFileError, match="there is no such file"):
        env_files.read([str(tmp_path / "none")])


def test_the_contents_of_environment_files_are_launch_settings(read: Read, tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    text = f"supervisor: {{processes: {{web: {{command: run, env-file: '{file}'}}, db: {{command: run}}}}}}"
    seen = []
    for content in (None, "A=1", "A=2", "A=1"):
        if content is not None:
            file.write_text(content)
        specs = read(text).supervisor.processes
        seen.append(specs["web"].launch_fingerprint)
        assert "A=" not in repr(specs["web"])
    assert seen[1] == seen[3]
    assert len(set(seen)) == 3
