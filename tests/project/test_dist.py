"""The wheel, sdist and executable of `make dist` are complete; they run in a virtual environment and without other
programs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path, PurePath

import pytest
from conftest import ROOT, load_script, wait_for
from PyInstaller.archive.readers import CArchiveReader
from requirements import NAMESPACES, missing_part
from trove_classifiers import classifiers

from models import VERSION

pytestmark = pytest.mark.proof
SMOKE = ROOT / "packing" / "smoke.py"
MAX_EXECUTABLE_BYTES = 40_000_000
PACKAGED = {
    "setup.cfg", "setup.py", "README.md", "LICENSE", "run.py",
    "models", "supervisor", "handlers", "static", "docs", "examples", "packing",
}  # fmt: skip


def run(*command: str | Path, **environ: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], env={**os.environ, **environ}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def helm_options() -> list[str]:
    found = shutil.which("helm") or str(ROOT / ".tools" / "helm")
    return ["--helm", found] if Path(found).exists() else []


@pytest.fixture(scope="module")
def dist_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all artifacts. It is built once, because the executable takes half a minute.

    PILOTHOUSE_DIST names an existing folder, to test the artifacts of a release.
    """
    if given := os.environ.get("PILOTHOUSE_DIST"):
        return Path(given)
    if lacking := load_script("packing/dist.py").missing():
        packages = " ".join(re.findall(r"\(package ([a-z0-9.+-]+)", ", ".join(lacking)))
        missing_part(
            ", ".join(lacking), f"Debian: apt install {packages}" if packages else "not in Debian: pip install"
        )
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, ROOT / "packing" / "dist.py", "--out", out)
    return out


@pytest.fixture(scope="module")
def wheel(dist_folder: Path) -> Path:
    return dist_folder / f"pilothouse-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="module")
def executable(dist_folder: Path) -> Path:
    return next(dist_folder.glob(f"pilothouse-{VERSION}-linux-*"))


def sources() -> set[str]:
    """Every module, template, static file and example of the program, by its path in the checkout."""
    listed = [
        path.relative_to(ROOT)
        for layer in ("models", "supervisor", "handlers", "static", "examples")
        for path in (ROOT / layer).rglob("*")
        if path.is_file()
    ]
    listed += [path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")]
    return {"run.py", *(str(path) for path in listed if "__pycache__" not in path.parts and path.name[0] != ".")}


def test_the_wheel_contains_exactly_the_program(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    info = f"pilothouse-{VERSION}.dist-info"
    packaged = {f"pilothouse/{name}" for name in ("__init__.py", "__main__.py", *sources())}
    assert {name for name in names if not name.startswith(info)} == packaged
    assert f"{info}/licenses/LICENSE" in names or f"{info}/LICENSE" in names


def test_the_sdist_contains_documents_and_no_tests(dist_folder: Path) -> None:
    with tarfile.open(dist_folder / f"pilothouse-{VERSION}.tar.gz") as file:
        names = {str(PurePath(*PurePath(name).parts[1:])) for name in file.getnames() if "/" in name}
    documents = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")}
    assert sources() | documents | {"LICENSE", "README.md", "CHANGELOG.md", "setup.cfg"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", ".")) or "__pycache__" in name]


def test_wheel_and_sdist_are_ready_for_an_index(wheel: Path, dist_folder: Path) -> None:
    """Long description that renders, metadata that an index accepts, classifiers that exist."""
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, dist_folder / f"pilothouse-{VERSION}.tar.gz")
    metadata = ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    listed = metadata["metadata"]["classifiers"].split("\n")[1:]
    assert listed
    assert set(listed) - set(classifiers) == set()


def unpacked_files(executable: Path, cache: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files and modules in the executable, unpacked."""
    run(executable, "--version", XDG_CACHE_HOME=str(cache))
    (folder,) = [path for path in (cache / "pilothouse").iterdir() if path.is_dir()]
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes()
    program = CArchiveReader(str(folder / "pilothouse"))
    modules = program.open_embedded_archive("PYZ.pyz")
    assert "handlers.app" in modules.toc
    yield from ((name, modules.extract(name, raw=True) or b"") for name in modules.toc)
    yield from ((name, program.extract(name)) for name in ("environment", "entry"))


def test_wheel_and_executable_do_not_contain_the_build_path(wheel: Path, executable: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        result = [name for name in file.namelist() if str(ROOT).encode() in file.read(name)]
    result += [name for name, content in unpacked_files(executable, tmp_path) if str(ROOT).encode() in content]
    assert result == []


def test_the_wheel_serves_from_a_virtual_environment(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", wheel)
    result = run(sys.executable, SMOKE, *helm_options(), "--without-tools", tmp_path / "venv" / "bin" / "pilothouse")
    assert result.startswith(f"pilothouse {VERSION}\n")
    assert "kill 9 and adoption" in result


def test_the_wheel_and_supervisor_of_pypi_run_in_one_environment(wheel: Path, tmp_path: Path) -> None:
    """PyPI's Supervisor installs a top-level package `supervisor`; ours is inside `pilothouse/`."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet", "--no-compile")
    if subprocess.run([*pip, "supervisor"], capture_output=True, timeout=300).returncode:
        missing_part("a package index, to install PyPI's supervisor from", "not in Debian: connect pip")
    run(*pip, wheel)
    assert re.fullmatch(r"4\.[0-9.]+\n", run(programs / "supervisord", "--version"))
    printed = run(programs / "python", "-I", "-c", "import supervisor.options; print(supervisor.options.__file__)")
    assert printed.strip().endswith("site-packages/supervisor/options.py")
    for command in ([programs / "pilothouse"], [programs / "python", "-m", "pilothouse"]):
        assert run(*command, "--version") == f"pilothouse {VERSION}\n"
    assert "kill 9 and adoption" in run(
        sys.executable, SMOKE, *helm_options(), "--without-tools", programs / "pilothouse"
    )


def test_an_editable_install_serves_the_checkout(tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT, copy, ignore=lambda folder, names: set(names) - PACKAGED if Path(folder) == ROOT else set())
    flags = ("--quiet", "--no-deps", "--no-build-isolation", "--ignore-installed")
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    run(sys.executable, "-m", "pip", "--python", python, "install", *flags, "--editable", copy)
    assert run(tmp_path / "venv" / "bin" / "pilothouse", "--version") == f"pilothouse {VERSION}\n"


@pytest.mark.needs(NAMESPACES)
def test_the_executable_serves_without_other_programs(executable: Path) -> None:
    assert executable.stat().st_size < MAX_EXECUTABLE_BYTES
    result = run(sys.executable, SMOKE, *helm_options(), "--bare", executable)
    assert result.startswith(f"pilothouse {VERSION}\n")
    assert "tools for agents" in result
    assert "kill 9 and adoption" in result


def cache_folders(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "pilothouse").iterdir() if path.name != "lock")


def test_concurrent_starts_unpack_once_and_restore_missing_files(executable: Path, tmp_path: Path) -> None:
    both = [
        subprocess.Popen([executable, "--version"], env={"XDG_CACHE_HOME": str(tmp_path)}, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert {one.communicate(timeout=60)[0] for one in both} == {f"pilothouse {VERSION}\n".encode()}
    (name,) = cache_folders(tmp_path)
    folder = tmp_path / "pilothouse" / name
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = folder.stat().st_ctime_ns
    assert run(executable, "--version", XDG_CACHE_HOME=str(tmp_path))
    assert folder.stat().st_ctime_ns == before
    next((folder / "_internal" / "static").iterdir()).unlink()
    assert run(executable, "--version", XDG_CACHE_HOME=str(tmp_path))
    assert folder.stat().st_ctime_ns != before
    assert len(list((folder / "_internal" / "static").iterdir())) == len(list((ROOT / "static").iterdir()))


def test_unused_versions_are_removed(executable: Path, tmp_path: Path) -> None:
    (tmp_path / "pilothouse" / "0.0.1-old").mkdir(parents=True, mode=0o700)
    (tmp_path / "pilothouse").chmod(0o700)
    (tmp_path / "pilothouse" / "0.0.1-old" / "file").touch()
    assert run(executable, "--version", XDG_CACHE_HOME=str(tmp_path))
    assert len(cache_folders(tmp_path)) == 1


def test_a_cache_folder_writable_by_others_is_not_used(executable: Path, tmp_path: Path) -> None:
    (tmp_path / "pilothouse").mkdir(mode=0o777)
    (tmp_path / "pilothouse").chmod(0o777)
    (tmp_path / "home").mkdir()
    assert run(executable, "--version", XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path / "home"))
    assert not list((tmp_path / "pilothouse").iterdir())
    assert list((tmp_path / "home" / ".cache" / "pilothouse").iterdir())


@pytest.mark.needs(NAMESPACES)
def test_an_unpacked_executable_runs_on_read_only_file_systems(executable: Path, tmp_path: Path) -> None:
    assert run(executable, "--version", XDG_CACHE_HOME=str(tmp_path), HOME="/nonexistent")
    remount_read_only = "".join(
        f'mount --bind "{at}" "{at}"; mount -o remount,ro,bind "{at}"; ' for at in ("/tmp", "/var/tmp", tmp_path)
    )
    command = (
        "unshare",
        "--mount",
        "sh",
        "-ec",
        f'{remount_read_only} ! touch "{tmp_path}/no" 2>&1; exec "$0" --version',
        executable,
    )
    assert f"pilothouse {VERSION}\n" in run(*command, XDG_CACHE_HOME=str(tmp_path), HOME="/nonexistent")


def test_the_executable_connects_to_postgresql(executable: Path, tmp_path: Path) -> None:
    (tmp_path / "pilothouse.yaml").write_text("server: {port: 0, database-url: 'postgresql://127.0.0.1:1/none'}")
    done = subprocess.run(
        [executable], cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path)}, capture_output=True, timeout=120
    )
    assert done.returncode == 1
    assert b"refused" in done.stderr, done.stderr


def test_children_of_the_executable_inherit_the_original_library_path(executable: Path, tmp_path: Path) -> None:
    (tmp_path / "pilothouse.yaml").write_text(
        "server: {port: 0}\n"
        "supervisor: {processes: {one: {auto-start: true, command: [sh, -c, 'env > draft; mv draft result']}}}\n"
    )
    environ = {"XDG_CACHE_HOME": str(tmp_path), "LD_LIBRARY_PATH": "/given", "PATH": os.environ["PATH"]}
    with subprocess.Popen([executable], cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL) as server:
        wait_for((tmp_path / "result").exists, about="a child that wrote its environment")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    result = (tmp_path / "result").read_text()
    assert re.findall("^LD_LIBRARY_PATH.*", result, re.MULTILINE) == ["LD_LIBRARY_PATH=/given"]
    assert "_PYI" not in result
    assert "PILOTHOUSE_LD" not in result
