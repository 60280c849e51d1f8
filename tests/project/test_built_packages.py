"""The package for Debian, the container image and the list of components, made of a small program.

`make proof` installs the real ones.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from requirements import require

from models import VERSION
from models.config import loader
from packing import archives, debian, oci, sbom

MAINTAINER_SCRIPTS = (debian.POSTINST, debian.PRERM, debian.POSTRM)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deb")
    (folder / "program").write_text(f"#!/bin/sh\necho pilothouse {VERSION}\n")
    return debian.build(folder / "program", folder, "x86_64")


def printed(*command: str | Path) -> str:
    return subprocess.run([str(one) for one in command], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_package_has_its_files_and_nothing_outside_of_their_folders(package: Path, tmp_path: Path) -> None:
    require("dpkg-deb")
    printed("dpkg-deb", "--extract", package, tmp_path)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    pages = {"man1/pilothouse.1.gz", "man1/pilothouse-ctl.1.gz", "man5/pilothouse.yaml.5.gz"}
    assert names >= {debian.UNIT, debian.CONFIGURATION, *debian.COMPLETIONS.values()}
    assert names >= {f"usr/share/man/{page}" for page in pages}
    assert printed(tmp_path / "usr/bin/pilothouse") == f"pilothouse {VERSION}\n"
    assert {name.split("/")[0] for name in names} == {"etc", "usr"}
    assert "root/root" in printed("dpkg-deb", "--contents", package).splitlines()[0]


def test_the_control_file_names_version_and_conffile(package: Path, tmp_path: Path) -> None:
    require("dpkg-deb")
    assert printed("dpkg-deb", "--field", package, "Version", "Architecture").splitlines() == [
        f"Version: {VERSION}", "Architecture: amd64",
    ]  # fmt: skip
    printed("dpkg-deb", "--control", package, tmp_path)
    assert (tmp_path / "conffiles").read_text() == "/etc/pilothouse/pilothouse.yaml\n"
    listed = dict(line.split("  ")[::-1] for line in (tmp_path / "md5sums").read_text().splitlines())
    content = debian.configuration().encode()
    assert listed[debian.CONFIGURATION] == hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("script", MAINTAINER_SCRIPTS)
def test_the_maintainer_scripts_are_valid_for_the_shell(script: str) -> None:
    subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=60)


def test_the_configuration_is_valid_and_leaves_the_data_directory_to_the_unit(tmp_path: Path) -> None:
    (tmp_path / "pilothouse.yaml").write_text(debian.configuration())
    assert [str(name) for name in loader.load(tmp_path / "pilothouse.yaml", {}).supervisor.processes] == ["hello"]
    assert "data-dir" not in yaml.safe_load(debian.configuration())["server"]
    assert "--data-dir /var/lib/pilothouse" in debian.unit()
    assert "/usr/local" not in debian.unit()
    assert "useradd" not in debian.unit()
    assert "ProtectSystem=strict" in debian.unit()


def blob(image: Path, digest: str) -> bytes:
    with tarfile.open(image) as file:
        reader = file.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
        assert reader is not None
        content = reader.read()
    assert hashlib.sha256(content).hexdigest() == digest.removeprefix("sha256:")
    return content


def test_the_image_has_the_program_a_user_and_a_health_check(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "program" / "pilothouse")
    image = oci.build(tmp_path / "program", tmp_path, "x86_64")
    with tarfile.open(image) as file:
        reader = file.extractfile("index.json")
        assert reader is not None
        index: dict[str, Any] = json.load(reader)
    manifest = json.loads(blob(image, index["manifests"][0]["digest"]))
    layer = blob(image, manifest["layers"][0]["digest"])
    config = json.loads(blob(image, manifest["config"]["digest"]))
    assert config["config"]["User"] == "10001:10001"
    assert config["config"]["Healthcheck"]["Test"][1:3] == ["/usr/bin/pilothouse", "ctl"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as file:
        members = {member.name: member for member in file}
    assert members["usr/bin/pilothouse"].linkname == "../lib/pilothouse/pilothouse"
    assert any(name.endswith("/libc.so.6") for name in members)
    writable = {name for name, member in members.items() if member.uid == oci.USER or member.mode & 0o022}
    assert {name for name in writable if not members[name].issym()} == {"data", "tmp"}


def test_the_list_of_components_has_the_dependencies_of_the_wheel() -> None:
    document = sbom.document()
    assert (document["bomFormat"], document["metadata"]["component"]["version"]) == ("CycloneDX", VERSION)
    names = {component["name"] for component in document["components"]}
    assert names >= {"python", "sqlite", "tornado", "peewee", "attrs", "mcp", "psycopg"}
    assert "pytest" not in names
    assert document == sbom.document()


def test_archives_have_the_same_bytes_for_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    made = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "a").write_text("x")
        (tmp_path / str(number) / "a").touch()
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as file:
            member = file.gettarinfo(tmp_path / str(number) / "a", "top/a")
            member.mtime = number
            file.addfile(member, io.BytesIO(b"x"))
        made.append(out.getvalue())
    assert made[0] != made[1]
    assert archives.repack(made[0]) == archives.repack(made[1])


def test_the_program_of_the_package_is_named_in_the_documents() -> None:
    assert "pilothouse_*.deb" in (ROOT / "README.md").read_text()
