"""Archives of charts: unsafe and invalid ones are refused; the content of valid ones is read."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chart_servers
import pytest
import yaml

from models.charts.archives import archive
from models.charts.archives.archive import ChartArchive
from models.charts.archives.tar_reader import ArchiveLimits, Budget, Tarball
from models.errors import Invalid

MIB = 1024**2


def check_archive(folder: Path, data: bytes, **bounds: int) -> ChartArchive:
    file = folder / "chart.tgz"
    file.write_bytes(data)
    return archive.check(file, ArchiveLimits(**bounds))


def assert_refused(folder: Path, data: bytes, why: str, **bounds: int) -> None:
    with pytest.raises(Invalid, match=why):
        check_archive(folder, data, **bounds)


def tar_info(name: str, **facts: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in facts.items():
        setattr(made, key, value)
    return made


CHART = b"apiVersion: v2\nname: demo\nversion: 0.1.0\n"


def chart_with_entry(entry: tarfile.TarInfo | str, data: bytes = b"") -> bytes:
    return chart_servers.tar_archive([("demo/Chart.yaml", CHART), (entry, data)])


def test_a_chart_has_its_name_and_version(tmp_path: Path) -> None:
    found = check_archive(tmp_path, chart_servers.chart_archive("demo", "1.2.3+b", appVersion="1.0", keywords=["a"]))
    assert (found.name, found.version) == ("demo", "1.2.3+b")
    assert found.metadata["appVersion"] == "1.0"
    assert found.metadata["keywords"] == ["a"]


def test_an_archive_of_helm_package_is_accepted(tmp_path: Path) -> None:
    chart_servers.run_helm(tmp_path, "create", "demo")
    chart_servers.run_helm(tmp_path, "package", "demo")
    assert archive.check(tmp_path / "demo-0.1.0.tgz").name == "demo"


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=pax"], ["--format=ustar"], ["--format=v7"], []])
def test_an_archive_of_tar_is_accepted_in_every_format(tmp_path: Path, options: list[str]) -> None:
    long = tmp_path / "demo" / "templates" / ("a" * 60)
    long.mkdir(parents=True)
    (tmp_path / "demo" / "Chart.yaml").write_bytes(CHART)
    (long / ("b" * 30 + ".yaml")).write_text("")
    if "--format=v7" not in options:
        (long / ("c" * 120)).write_text("") if "--format=ustar" not in options else None
        (tmp_path / "demo" / "ümlaut.txt").write_text("")
    done = subprocess.run(["tar", "czf", "it.tgz", *options, "demo"], cwd=tmp_path, capture_output=True, check=False)
    if done.returncode == 0:
        assert archive.check(tmp_path / "it.tgz").name == "demo"
    else:
        assert options == ["--format=v7"]  # its names are at most 99 characters


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (tar_info("demo/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "neither a file nor a folder"),
        (tar_info("demo/link", type=tarfile.LNKTYPE, linkname="demo/Chart.yaml"), "neither a file nor a folder"),
        (tar_info("demo/tty", type=tarfile.CHRTYPE), "neither a file nor a folder"),
        (tar_info("demo/disk", type=tarfile.BLKTYPE), "neither a file nor a folder"),
        (tar_info("demo/pipe", type=tarfile.FIFOTYPE), "neither a file nor a folder"),
        (tar_info("demo/contiguous", type=tarfile.CONTTYPE), "neither a file nor a folder"),
        (tar_info("demo/strange", type=b"Z"), "neither a file nor a folder"),
        (tar_info("demo/sparse", type=tarfile.GNUTYPE_SPARSE), "neither a file nor a folder"),
        ("demo/../../etc/cron.d/x", "outside its folder"),
        ("demo/templates/../../x", "outside its folder"),
        ("demo/./x", "outside its folder"),
        ("demo//x", "outside its folder"),
        ("/etc/passwd", "outside its folder"),
        ("../demo/x", "outside its folder"),
        ("demo\\..\\x", "outside its folder"),
        ("demo/a\nb", "outside its folder"),
        ("demo/" + "a/" * 600 + "b", "outside its folder"),
        ("other/Chart.yaml", "one top folder"),
        ("lonely.txt", "one top folder"),
        ("demo/Chart.yaml", "duplicate"),
        ("demo/Chart.yaml/x", "duplicate"),
        (tar_info("demo/Chart.yaml", type=tarfile.DIRTYPE), "duplicate"),
    ],
)
def test_unsafe_archive_entries_are_refused(tmp_path: Path, entry: tarfile.TarInfo | str, why: str) -> None:
    assert_refused(tmp_path, chart_with_entry(entry), why)


def test_a_file_with_the_path_of_a_folder_is_refused(tmp_path: Path) -> None:
    assert_refused(
        tmp_path,
        chart_servers.tar_archive([("demo/Chart.yaml", CHART), ("demo/a/b", b""), ("demo/a", b"")]),
        "duplicate",
    )


def test_a_file_that_is_repeated_unchanged_counts_once(tmp_path: Path) -> None:
    """helm repeats the files of a subchart that is in charts/ as a folder and as an archive."""
    folder = tmp_path / "demo"
    for chart in (folder, folder / "charts" / "sub"):
        (chart / "templates").mkdir(parents=True)
        (chart / "Chart.yaml").write_text(f"apiVersion: v2\nname: {chart.name}\nversion: 0.1.0\n")
        (chart / "templates" / "a.yaml").write_text("a: {{ .Chart.Name }}\n")
    chart_servers.run_helm(tmp_path, "package", "demo/charts/sub", "-d", "demo/charts")
    chart_servers.run_helm(tmp_path, "package", "demo")
    packed = (tmp_path / "demo-0.1.0.tgz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(packed)) as file:
        assert file.getnames().count("demo/charts/sub/Chart.yaml") == 2
    assert check_archive(tmp_path, packed).vendored == {("sub", "0.1.0")}
    repeated = chart_servers.tar_archive(
        [("demo/Chart.yaml", CHART), ("demo/a", b"1"), ("demo/a", b"1"), ("demo/b", b"")]
    )
    with io.BytesIO(repeated) as file_:
        members = list(Tarball(file_, Budget(ArchiveLimits())).members())
    assert [member.path for member in members] == ["Chart.yaml", "a", "b"]


def test_entries_for_folders_are_optional(tmp_path: Path) -> None:
    folder = tar_info("demo/templates", type=tarfile.DIRTYPE)
    assert check_archive(
        tmp_path, chart_servers.tar_archive([("demo/Chart.yaml", CHART), (folder, b""), ("demo/templates/a", b"")])
    ).name


def archive_with_pax_header(records: dict[str, str], kind: bytes = tarfile.XHDTYPE) -> bytes:
    """An archive with a pax header of these records before one of its files."""
    body = b""
    for key, value in records.items():
        line = f" {key}={value}\n".encode()
        length = len(line) + 1
        while len(str(length)) + len(line) != length:
            length += 1
        body += str(length).encode() + line
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as file:
        file.addfile(tar_info("demo/Chart.yaml", size=len(CHART)), io.BytesIO(CHART))
        header = tar_info("demo/pax", type=kind, size=len(body))
        raw.write(header.tobuf() + body + b"\0" * (-len(body) % 512))
        file.offset = raw.tell()
        file.addfile(tar_info("demo/x", size=3), io.BytesIO(b"abc"))
    return gzip.compress(raw.getvalue(), 1)


def test_a_pax_header_can_set_path_and_time_of_a_file(tmp_path: Path) -> None:
    assert check_archive(tmp_path, archive_with_pax_header({"mtime": "1.5", "path": "demo/y"})).name == "demo"


@pytest.mark.parametrize(
    "records",
    [
        {"size": "1000000"},
        {"linkpath": "/etc/passwd"},
        {"GNU.sparse.map": "0,1"},
        {"GNU.sparse.name": "demo/z"},
        {"hdrcharset": "BINARY"},
    ],
)
def test_a_pax_header_that_changes_the_type_of_a_file_is_refused(tmp_path: Path, records: dict[str, str]) -> None:
    assert_refused(tmp_path, archive_with_pax_header(records), "header that plain files do not need")


def test_a_pax_header_with_a_path_outside_the_folder_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path, archive_with_pax_header({"path": "demo/../../x"}), "outside its folder")
    assert_refused(tmp_path, archive_with_pax_header({"path": "demo/z"}, tarfile.XGLTYPE), "one path for all")
    assert_refused(tmp_path, archive_with_pax_header({"comment": "x" * 70_000}), "header that is too long")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "gzip|empty"),
        (b"not an archive", "not a gzip archive"),
        (gzip.compress(b"not a tar" * 100), "not a tar archive"),
        (gzip.compress(b""), "damaged"),
        (gzip.compress(b"\0" * 1024), "empty"),
        (chart_servers.chart_archive()[:-20], "damaged"),
        (chart_servers.chart_archive()[:60] + b"\0\0\0\0" + chart_servers.chart_archive()[64:], "damaged|no tar"),
        (chart_servers.tar_archive([("demo/values.yaml", b"")]), "no Chart.yaml"),
        (chart_servers.tar_archive([("demo/sub/Chart.yaml", CHART)]), "no Chart.yaml"),
        (chart_servers.tar_archive([("demo/chart.yaml", CHART)]), "no Chart.yaml"),
    ],
    ids=range(10),
)
def test_an_archive_that_is_not_a_chart_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    assert_refused(tmp_path, data, why)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "mapping"),
        (b"- a", "mapping"),
        (b"a: [", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"a: " + b"[" * 5000, "more than 500 deep"),
        (b"a: " + b"{a: " * 200_000, "more than 500 deep"),
        (b"? {a: b}\n: c", "not YAML"),
        (b"apiVersion:\nname: demo\nversion: 0.1.0", "must have apiVersion"),
        (b"apiVersion: v2\nversion: 0.1.0", "must have name"),
        (b"apiVersion: v2\nname: demo", "must have version"),
        (b"apiVersion: v2\nname: ~\nversion: 0.1.0", "must have name"),
        (b"apiVersion: v2\nname: [a]\nversion: 0.1.0", "must have name"),
        (b"apiVersion: v3\nname: demo\nversion: 0.1.0", "v1 or v2"),
        (b"apiVersion: v2\nname: ../demo\nversion: 0.1.0", "the chart's name"),
        (b"apiVersion: v2\nname: -demo\nversion: 0.1.0", "the chart's name"),
        (b"apiVersion: v2\nname: 'de\"mo'\nversion: 0.1.0", "the chart's name"),
        (b"apiVersion: v2\nname: demo\nversion: latest", "not a semantic version"),
        (b"apiVersion: v2\nname: demo\nversion: 1.0.0/../x", "not a semantic version"),
        (b"apiVersion: v2\nname: demo\nversion: 0.1.0\ntype: other", "application or library"),
        (b"apiVersion: v2\nname: demo\nversion: 0.1.0\ndependencies: {a: b}", "list its dependencies"),
        (b"apiVersion: v2\nname: demo\nversion: 0.1.0\ndependencies: [{version: 1}]", "list its dependencies"),
        (CHART + b"# " + b"x" * MIB, "larger than"),
    ],
)  # fmt: skip
def test_invalid_chart_metadata_is_refused(tmp_path: Path, text: bytes, why: str) -> None:
    assert_refused(tmp_path, chart_servers.tar_archive([("demo/Chart.yaml", text)]), why)


# ArchiveLimits


def test_an_archive_above_the_size_limit_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path, chart_servers.chart_archive(), "larger than 100 bytes", packed=100)


def test_a_file_in_an_archive_has_at_most_five_mebibytes(tmp_path: Path) -> None:
    assert check_archive(tmp_path, chart_with_entry("demo/large", bytes(5 * MIB))).name == "demo"
    assert_refused(tmp_path, chart_with_entry("demo/large", bytes(5 * MIB + 1)), "larger than 5242880 bytes")


def test_unpacking_a_gzip_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    """The archive holds two gigabytes of zeros in two megabytes."""
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as packed:
        header = tar_info("demo/zeros", size=2**31).tobuf()
        packed.write(header)
        for _ in range(256):
            packed.write(bytes(8 * MIB))
    assert_refused(tmp_path, raw.getvalue(), "larger than")
    many = chart_servers.tar_archive(
        [("demo/Chart.yaml", CHART), *((f"demo/{number}", bytes(4 * MIB)) for number in range(26))]
    )
    assert_refused(tmp_path, many, "unpacks to more than 104857600 bytes")


def test_data_after_the_end_of_the_archive_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path, chart_servers.chart_archive() + gzip.compress(bytes(200 * MIB), 1), "unpacks to more than")
    assert_refused(tmp_path, chart_servers.chart_archive() + chart_servers.chart_archive("other"), "data after its end")
    assert_refused(tmp_path, chart_servers.chart_archive() + b"more", "damaged")


def test_an_archive_with_too_many_entries_is_refused(tmp_path: Path) -> None:
    entries = [("demo/Chart.yaml", CHART), *((f"demo/{number}", b"") for number in range(50_000))]
    assert_refused(
        tmp_path, chart_servers.tar_archive([(name, data) for name, data in entries]), "more than 50000 entries"
    )


def test_limits_count_the_content_of_nested_archives(tmp_path: Path) -> None:
    """A small archive can contain a large one, which can contain another."""
    inner = chart_servers.chart_archive("inner", files={"zeros": bytes(3 * MIB)})
    files = {f"charts/inner{number}.tgz": inner for number in range(4)}
    assert_refused(tmp_path, chart_servers.chart_archive(files=files), "unpacks to more than", unpacked=10 * MIB)
    assert check_archive(tmp_path, chart_servers.chart_archive(files=files), unpacked=20 * MIB).vendored == {
        ("inner", "0.1.0")
    }
    nested = chart_servers.chart_archive("leaf")
    for _ in range(10):
        nested = chart_servers.chart_archive("level", files={"charts/below.tgz": nested})
    assert_refused(tmp_path, nested, "archives within archives")


@pytest.mark.parametrize(
    "data",
    [
        chart_servers.tar_archive(
            [("inner/Chart.yaml", CHART), (tar_info("inner/x", type=tarfile.SYMTYPE, linkname="/etc"), b"")]
        ),
        chart_servers.tar_archive([("inner/Chart.yaml", CHART), ("inner/../../x", b"")]),
        b"not an archive",
        chart_servers.tar_archive([("inner/values.yaml", b"")]),
    ],
)
def test_a_packaged_subchart_is_checked_like_a_chart(tmp_path: Path, data: bytes) -> None:
    assert_refused(tmp_path, chart_servers.chart_archive(files={"charts/inner.tgz": data}), "chart")


# Schemas


METASCHEMAS = (
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-04/schema#",
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
)


@pytest.mark.parametrize(
    "schema",
    [
        *({"$schema": url, "type": "object"} for url in METASCHEMAS),
        {"properties": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {"type": "string"}}},
        {"$ref": "#"},
        {"$dynamicRef": "#node", "$id": "#here"},
        {"properties": {"$ref": {"type": "string"}, "id": {"type": "string"}, "$id": {"type": "integer"}}},
        {"properties": {"x": {"default": {"id": "https://example.com/thing"}}}, "examples": [{"id": "http://a/"}]},
        {"$id": "https://traefik.io/traefik-helm-chart.schema.json", "$ref": "#/$defs/a", "$defs": {"a": {}}},
        {"id": "http://127.0.0.1/x", "properties": {"default": {"id": "http://127.0.0.1/x"}}},
        {"$id": "http://a/x.json", "properties": {"b": {"$ref": "http://a/x.json#/definitions/b"}}},
        {"$defs": {"a": {"$id": "tag:a"}}, "$ref": "tag:a", "$dynamicRef": "tag:a#b"},
        {"properties": {"x": {"enum": [{"$schema": "http://127.0.0.1/x"}]}, "$schema": {"const": "x"}}},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"$id": "x" * 2048},
        {"$id": "x.json", "properties": {"a": {"$ref": "x.json"}}},
        {"$schema": "http://json-schema.org/schema#"},
        {"enum": [{"$ref": "http://127.0.0.1/x"}]},
        True,
    ],
)  # fmt: skip
def test_a_schema_with_internal_references_is_accepted(tmp_path: Path, schema: Any) -> None:
    assert (
        check_archive(tmp_path, chart_servers.chart_archive(files={"values.schema.json": json.dumps(schema)})).name
        == "demo"
    )


EXTERNAL_REFERENCES: list[str] = [
    '{"$ref": "http://127.0.0.1/x"}',
    '{"$ref": "file:///etc/passwd"}',
    '{"$ref": "other.json#/a"}',
    '{"$ref": "/etc/passwd"}',
    '{"$ref": "//127.0.0.1/x"}',
    '{"properties": {"a": {"items": [{"anyOf": [{"$ref": "http://x/"}]}]}}}',
    '{"$dynamicRef": "https://example.com/x#node"}',
    '{"$recursiveRef": "https://example.com/x"}',
    '{"$id": "file:///etc/passwd"}',
    '{"id": "FILE:x", "properties": {}}',
    json.dumps({"$id": "x" * 2049}),
    '{"$id": "http://a/x.json", "$ref": "y.json"}',
    '{"const": {"$id": "http://a/x"}, "$ref": "http://a/x"}',
    '{"$ref": "http://json-schema.org/draft-07/hyper-schema"}',
    '{"$schema": "http://json-schema.org/draft-07/hyper-schema#"}',
    '{"$ref": "https://json-schema.org/draft/2020-12/meta/core"}',
    '{"$ref": "http://json-schema.org/draft-07/schema#/definitions/x"}',
    '{"enum": [{"$ref": "http://127.0.0.1/x"}], "$ref": "#/enum/0"}',
    '{"x-own": {"$id": "http://127.0.0.1/x"}, "$ref": "http://127.0.0.1/x"}',
    '{"$schema": "http://127.0.0.1/draft-07/schema#"}',
    '{"$schema": "http://json-schema.org/draft-07/schema/../../x"}',
    '{"$schema": "http://json-schema.org.example.com/draft-07/schema#"}',
    '{"$schema": "http://json-schema.org@127.0.0.1/draft-07/schema#"}',
    '{"\\u0024ref": "http://127.0.0.1/x"}',
    '{"$ref": "http://127.0.0.1/x", "$ref": "#"}',
    '{"default": {"$ref": "http://127.0.0.1/x"}, "not": {"$ref": "#/default"}}',
]


@pytest.mark.parametrize("schema", EXTERNAL_REFERENCES)
@pytest.mark.parametrize(
    "place", ["values.schema.json", "charts/sub/values.schema.json", "charts/a/charts/b/values.schema.json"]
)
def test_a_schema_with_external_references_is_refused(tmp_path: Path, schema: str, place: str) -> None:
    assert_refused(tmp_path, chart_servers.chart_archive(files={place: schema}), "refers to something outside")


def test_the_schema_error_names_file_pointer_keyword_and_value(tmp_path: Path) -> None:
    schema = '{"properties": {"a/b": {"items": [{"$ref": "http://x/"}]}}}'
    assert_refused(
        tmp_path,
        chart_servers.chart_archive(files={"charts/sub/values.schema.json": schema}),
        re.escape('charts/sub/values.schema.json, /properties/a~1b/items/0/$ref: $ref "http://x/"'),
    )


@pytest.mark.parametrize(
    ("reference", "is_old"),
    [
        ("http://json-schema.org/draft-07/schema#", True),
        ("http://json-schema.org/draft-04/schema", True),
        ("https://json-schema.org/draft-07/schema#", False),
        ("http://json-schema.org/draft/2020-12/schema", False),
        ("http://a/x.json#/b", False),
    ],
)
def test_helm_before_3_18_embeds_three_metaschemas(tmp_path: Path, reference: str, is_old: bool) -> None:
    schema = json.dumps({"$id": "http://a/x.json", "properties": {"a": {"$ref": reference}}})
    chart = check_archive(tmp_path, chart_servers.chart_archive(files={"values.schema.json": schema}))
    for version in ((3, 18), (3, 19), (4, 0)):
        chart.check_helm(version)
    if is_old:
        chart.check_helm((3, 14))
    else:
        with pytest.raises(Invalid, match=r"helm 3\.18 or later"):
            chart.check_helm((3, 17))


@pytest.mark.parametrize("schema", EXTERNAL_REFERENCES[:2])
def test_an_external_reference_in_a_packaged_subchart_is_refused(tmp_path: Path, schema: str) -> None:
    inner = chart_servers.chart_archive(
        "inner", files={"charts/leaf.tgz": chart_servers.chart_archive("leaf", files={"values.schema.json": schema})}
    )
    assert_refused(
        tmp_path, chart_servers.chart_archive(files={"charts/inner-0.1.0.tgz": inner}), "refers to something outside"
    )


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 200_000, b'{"a": 1} {"b": 2}', b"type: object"])
def test_a_schema_that_is_not_json_is_refused(tmp_path: Path, text: bytes) -> None:
    assert_refused(tmp_path, chart_servers.chart_archive(files={"values.schema.json": text}), "is not JSON")


# Dependencies


DEPENDENCIES = [{"name": "redis", "version": "1.x", "repository": "file://../redis"}, {"name": "db", "version": ">1"}]


def test_a_chart_without_its_dependencies_is_not_complete(tmp_path: Path) -> None:
    lacking = check_archive(tmp_path, chart_servers.chart_archive(dependencies=DEPENDENCIES))
    assert [(one.name, one.version, one.repository) for one in lacking.dependencies] == [
        ("redis", "1.x", "file://../redis"), ("db", ">1", ""),
    ]  # fmt: skip
    with pytest.raises(Invalid, match="redis, db"):
        lacking.must_be_complete()
    files: dict[str, str | bytes] = {
        "charts/redis-1.2.0.tgz": chart_servers.chart_archive("redis", "1.2.0"),
        "charts/db/Chart.yaml": "apiVersion: v2\nname: db\nversion: 2.0.0",
    }
    whole = check_archive(tmp_path, chart_servers.chart_archive(dependencies=DEPENDENCIES, files=files))
    whole.must_be_complete()
    assert whole.vendored == {("redis", "1.2.0"), ("db", "2.0.0")}


def test_folders_that_helm_ignores_in_charts_are_not_subcharts(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"charts/{name}/Chart.yaml": "none" for name in ("_off", ".git")}
    found = check_archive(tmp_path, chart_servers.chart_archive(dependencies=[{"name": "none"}], files=files))
    assert found.vendored == frozenset()


def test_a_chart_of_helm_2_needs_no_api_version(tmp_path: Path) -> None:
    needs = b"dependencies:\n- name: redis\n"
    old = chart_servers.tar_archive(
        [("demo/Chart.yaml", b"name: demo\nversion: 0.1.0"), ("demo/requirements.yaml", needs)]
    )
    found = check_archive(tmp_path, old)
    assert (found.metadata["apiVersion"], [one.name for one in found.dependencies]) == ("v1", ["redis"])


@pytest.mark.parametrize("text", ["", "# dependencies:\n", "---\n", "null\n"])
def test_a_requirements_yaml_without_content_changes_nothing(tmp_path: Path, text: str) -> None:
    own = [{"name": "redis", "version": "1.x", "repository": "https://r.example"}]
    data = chart_servers.chart_archive(dependencies=own, files={"requirements.yaml": text})
    found = check_archive(tmp_path, data)
    assert [(dependency.name, dependency.version) for dependency in found.dependencies] == [("redis", "1.x")]
    shown = chart_servers.run_helm(tmp_path, "show", "chart", str(found.path)).stdout
    assert "name: redis" in shown


def test_dependencies_are_read_from_requirements_yaml(tmp_path: Path) -> None:
    files = {"requirements.yaml": "dependencies:\n- name: redis\n  version: 1.x\n  repository: https://r.example\n"}
    old = check_archive(tmp_path, chart_servers.chart_archive(apiVersion="v1", files=files))
    assert [one.name for one in old.dependencies] == ["redis"]
    newer = check_archive(
        tmp_path, chart_servers.chart_archive(files=files, dependencies=[{"name": "x", "version": "1"}])
    )
    assert [one.name for one in newer.dependencies] == ["redis"]  # as in helm, with a warning


# Output of show


RICH = chart_servers.chart_archive(
    description="for show",
    unknownToHelm="kept",
    files={
        "README.md": "# Demo\n\nIt ümlauts.\n",
        "crds/b.yaml": "kind: B\n",
        "crds/a.yaml": "---\nkind: A",
        "crds/deep/c.yml": "kind: C\n",
        "crds/README.md": "no definition",
        "templates/crds/no.yaml": "no definition",
        "charts/sub/Chart.yaml": "apiVersion: v2\nname: sub\nversion: 0.1.0",
        "charts/sub/crds/d.yaml": "kind: D\n",
        "charts/inner-0.1.0.tgz": chart_servers.chart_archive("inner", files={"crds/e.yaml": "kind: E\n"}),
    },
)


def write_archive(folder: Path, data: bytes) -> Path:
    file = folder / "chart.tgz"
    file.write_bytes(data)
    return file


@pytest.mark.parametrize(
    ("read", "what"), [(archive.show_values, "values"), (archive.show_readme, "readme"), (archive.show_crds, "crds")]
)
def test_show_has_the_output_of_helm(tmp_path: Path, read: Callable[[Path], str], what: str) -> None:
    own, theirs = (
        read(write_archive(tmp_path, RICH)),
        chart_servers.run_helm(tmp_path, "show", what, "chart.tgz").stdout,
    )
    assert _lines(own) == _lines(theirs)  # helm 3 puts no --- between definitions, helm 4 does
    assert own.strip()


def _lines(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.strip() and line != "---")


def test_custom_resource_definitions_are_separated(tmp_path: Path) -> None:
    assert archive.show_crds(write_archive(tmp_path, RICH)).count("---\n") == 5


def test_show_chart_returns_chart_yaml_unchanged(tmp_path: Path) -> None:
    """helm drops unknown fields."""
    assert archive.show_chart(write_archive(tmp_path, RICH)).splitlines() == [
        "apiVersion: v2", "name: demo", "version: 0.1.0", "description: for show", "unknownToHelm: kept",
    ]  # fmt: skip


CRDS = {"z": "kind: Z\n", "a": "---\nkind: A", "deep/c": "kind: C\n\n", "empty": "", "mark": "\ufeffkind: M\n"}


def test_definitions_have_the_bytes_of_helm(tmp_path: Path) -> None:
    """In the order of the archive, with those of subcharts at the end."""
    files = {f"crds/{name}.yaml": text for name, text in CRDS.items()}
    files |= {"charts/sub/Chart.yaml": "apiVersion: v2\nname: sub\nversion: 0.1.0", "charts/sub/crds/d.json": "{}"}
    own = archive.show_crds(write_archive(tmp_path, chart_servers.chart_archive(files=files)))
    assert own == chart_servers.run_helm(tmp_path, "show", "crds", "chart.tgz").stdout


def test_show_chart_has_the_dependencies_of_requirements_yaml(tmp_path: Path) -> None:
    requirements = "dependencies:\n- name: redis\n  version: 1.x\n  repository: https://r.example\n"
    own_facts: list[dict[str, Any]] = [{}, {"dependencies": [{"name": "other", "version": "1"}]}]
    for facts in own_facts:
        files = {"requirements.yaml": requirements}
        data = chart_servers.chart_archive(apiVersion="v1", files=files, **facts)
        for shown in (archive.show_chart, archive.show_all):
            own = yaml.safe_load(shown(write_archive(tmp_path, data)).split("\n---\n")[0])
            theirs = yaml.safe_load(chart_servers.run_helm(tmp_path, "show", "chart", "chart.tgz").stdout)
            assert own == theirs
    broken = chart_servers.chart_archive(files={"requirements.yaml": "a: ["})
    assert archive.show_chart(write_archive(tmp_path, broken)).startswith("apiVersion: v2\n")


def test_show_all_joins_the_parts(tmp_path: Path) -> None:
    whole = archive.show_all(write_archive(tmp_path, RICH))
    chart, values, readme, crds = (
        read(write_archive(tmp_path, RICH))
        for read in (archive.show_chart, archive.show_values, archive.show_readme, archive.show_crds)
    )
    assert whole == f"{chart}---\n{values}---\n{readme}{crds}"


def test_show_of_a_missing_part_is_empty(tmp_path: Path) -> None:
    bare = write_archive(tmp_path, chart_servers.tar_archive([("demo/Chart.yaml", CHART)]))
    assert (archive.show_values(bare), archive.show_readme(bare), archive.show_crds(bare)) == ("", "", "")
    assert archive.show_all(bare) == CHART.decode()
