"""Chart references, versions and ranges; a range selects the version that helm selects."""

from __future__ import annotations

from pathlib import Path

import chart_servers
import pytest

from models.charts import refs
from models.charts.refs import ChartRef
from models.charts.repositories import semver
from models.config.parsers import ValidationError
from models.errors import Invalid


@pytest.mark.parametrize(
    ("text", "version", "meant"),
    [
        ("lab/demo", None, ("lab", "demo", "")),
        ("lab/demo", " ", ("lab", "demo", "")),
        ("lab/demo:1.2.3", None, ("lab", "demo", "1.2.3")),
        ("lab/demo:1.2", "1.2", ("lab", "demo", "1.2")),
        ("lab/demo", "^1.2 || ~3", ("lab", "demo", "^1.2 || ~3")),
        ("my.lab_1/De-mo.x", "1.0.0+build.7", ("my.lab_1", "De-mo.x", "1.0.0+build.7")),
    ],
)
def test_references_to_repositories_are_parsed(text: str, version: str | None, meant: tuple[str, str, str]) -> None:
    ref = ChartRef.parse(text, version)
    assert (ref.repository, ref.chart, ref.version) == meant
    assert not ref.is_oci


@pytest.mark.parametrize(
    ("text", "version", "meant"),
    [
        ("oci://reg.example/charts/demo", None, ("reg.example", "charts/demo", "", "")),
        ("oci://reg.example:5000/demo:1.0.0", None, ("reg.example:5000", "demo", "", "1.0.0")),
        ("oci://reg.example/a/b/demo:1.0.0_b", "1.0.0+b", ("reg.example", "a/b/demo", "1.0.0+b", "1.0.0_b")),
        ("oci://[2001:db8::1]:5000/demo", ">1", ("[2001:db8::1]:5000", "demo", ">1", "")),
        ("oci://127.0.0.1:5000/demo:latest", None, ("127.0.0.1:5000", "demo", "", "latest")),
    ],
)
def test_references_to_registries_are_parsed(text: str, version: str | None, meant: tuple[str, str, str, str]) -> None:
    ref = ChartRef.parse(text, version)
    assert (ref.repository, ref.chart, ref.version, ref.tag) == meant
    assert ref.is_oci


@pytest.mark.parametrize(
    "text",
    [
        "", "demo", "/demo", "lab/", "./demo", "../demo", "lab/../demo", "lab/..", "/etc/passwd", "lab/demo/more",
        "~/demo", "-x/demo", "lab/-x", "--post-renderer=x/y", "lab/de mo", "lab/demo\n", "lab/demo:", "lab/a..b",
        "http://x.example/demo.tgz", "https://x.example/demo.tgz", "file:///etc", "C:/demo", "lab\\demo", "lab/démo",
        "@lab/demo", "lab/demo@sha256:0", ".lab/demo", "lab/demo?x", "lab/demo#x", "%2e%2e/demo", "lab/" + "a" * 251,
        "oci://", "oci:///demo", "oci://reg.example", "oci://reg.example/", "oci://reg.example/Demo",
        "oci://reg.example/../demo", "oci://reg.example/a//b", "oci://u:p@reg.example/demo", "oci://reg.example:0/demo",
        "oci://reg.example:99999/demo", "oci://reg.example/demo:", "oci://reg.example/demo:a b", "oci://-x/demo",
        "oci://reg.example/demo@sha256:0", "OCI://reg.example/demo", "oci://[::1/demo", "oci://reg.example/demo?x=1",
        "oci://reg.example\\@evil/demo", "oci:/reg.example/demo", "oci://reg.example/-x/demo",
    ],
)  # fmt: skip
def test_invalid_references_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="chartRef"):
        ChartRef.parse(text)


def test_the_version_in_a_reference_must_equal_the_version_field() -> None:
    for text, version in [
        ("lab/demo:1.2", "1.3"),
        ("oci://reg.example/demo:1.2.0", "1.2.1"),
        ("lab/demo:1.2", "1.2.0"),
    ]:
        with pytest.raises(Invalid, match="names version"):
            ChartRef.parse(text, version)


@pytest.mark.parametrize(
    "text", ["1/2", "../1", "-1", "--version", "latest", "1.2.3.4", "1..2", "v", "1.2\n3", "a" * 300, ">>1", "1 2 -"]
)
def test_invalid_versions_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="version"):
        ChartRef.parse("lab/demo", text)


def test_names_of_repositories_are_checked() -> None:
    for good in ("lab", "my-lab.2", "A_b"):
        refs.repository_name(good)
    for bad in ("", ".", "..", "a/b", "-a", "a b", "ä", "a" * 251, "a..b", ".a"):
        with pytest.raises(ValidationError):
            refs.repository_name(bad)


def test_the_remote_of_a_push_gets_chart_name_and_tag() -> None:
    ref = refs.remote("oci://reg.example:5000/charts/", "demo", "1.0.0+b")
    assert (ref.repository, ref.chart, ref.tag) == ("reg.example:5000", "charts/demo", "1.0.0_b")
    assert refs.remote("oci://reg.example", "demo", "1.0.0").chart == "demo"
    for bad in (
        "reg.example/charts",
        "https://reg.example/charts",
        "oci://",
        "oci://reg.example/a:1",
        "oci://u@reg.example/a",
        "oci://reg.example/../a",
    ):
        with pytest.raises(Invalid, match="remote"):
            refs.remote(bad, "demo", "1.0.0")


PUBLISHED = (
    "0.0.1", "0.0.2", "0.1.0", "0.1.5", "0.2.0", "1.0.0-alpha.1", "1.0.0-alpha.2", "1.0.0-alpha.10", "1.0.0-rc.1",
    "1.0.0", "1.0.1", "1.2.0", "1.2.9", "1.2.10", "1.3.0-beta", "1.10.0", "2.0.0", "2.0.0-0", "2.1.0+build.1",
    "3.0.0-rc.1", "10.0.0",
)  # fmt: skip
RANGES = (
    "", "*", "x", "1", "1.x", "1.2", "1.2.x", "v1.2", "=1.2.9", "==1.2.9", "1.2.9", "!=10", "!=10.0.0", ">1", ">1.2",
    ">1.2.3", ">=1.2", "=>1.2", "<1", "<1.2", "<=1", "<=1.2", "=<1.2.0", "~1", "~1.2", "~1.2.3", "~>1.2", "~0", "~0.0",
    "~0.0.0", "~0.1", "^1", "^1.2", "^1.2.3", "^0", "^0.0", "^0.0.1", "^0.1", "^0.1.2", "1.0 - 1.2", "1.0.0 - 2",
    ">=1.0.0, <2", ">=1.0.0 <2.0.0", "<1 || >=2 <3", "^0.1 || ~1.2", ">=1.0.0-0", ">1.0.0-alpha.2 <1.0.0",
    "1.0.0-rc.1", "^1.0.0-alpha", "~1.3.0-0", ">2.0.0-0", "*-0", ">=3.0.0-0 <3.0.0", "2.1.0", "2.1.0+build.1", "9",
    "> 1.2 , < 2", "!=1.2.x", "!=1", "<0.0.1",
)  # fmt: skip


@pytest.fixture(scope="module")
def helm_choices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The archive that helm pulls for each range, or `none` or `improper`."""
    folder = tmp_path_factory.mktemp("ranges")
    with chart_servers.web_server() as web:
        web.serve(*(("demo", version, chart_servers.chart_archive("demo", version)) for version in PUBLISHED))
        chart_servers.run_helm(folder, "repo", "add", "lab", web.url)
        found = {}
        for text in RANGES:
            done = chart_servers.run_helm(folder, "pull", f"--version={text}", "--", "lab/demo", ok=False)
            pulled = list(folder.glob("*.tgz"))
            found[text] = pulled[0].name if pulled else "improper" if "improper constraint" in done.stderr else "none"
            for path in pulled:
                path.unlink()
        return found


@pytest.mark.parametrize("text", RANGES)
def test_a_range_selects_the_version_that_helm_selects(text: str, helm_choices: dict[str, str]) -> None:
    try:
        found = semver.chosen(text, semver.newest_first(PUBLISHED))
        own = f"demo-{found}.tgz" if found else "none"
    except Invalid:
        own = "improper"
    assert own == helm_choices[text], f"{text!r}: Pilothouse {own}, helm {helm_choices[text]}"


def test_versions_are_sorted_by_semver_precedence() -> None:
    expected = [
        "10.0.0",
        "3.0.0-rc.1",
        "2.1.0+build.1",
        "2.0.0",
        "2.0.0-0",
        "1.10.0",
        "1.3.0-beta",
        "1.2.10",
        "1.2.9",
        "1.2.0",
    ]
    assert semver.newest_first(reversed(PUBLISHED))[:10] == expected
    assert semver.newest_first(["1.0.0-alpha.2", "1.0.0-alpha.10", "nonsense", "1.0.0-alpha", "1.0.0-1", "v1"]) == [
        "v1", "1.0.0-alpha.10", "1.0.0-alpha.2", "1.0.0-alpha", "1.0.0-1",
    ]  # fmt: skip


def test_an_exact_version_is_preferred() -> None:
    assert semver.chosen("1.0.0", ["1.0.0+b", "1.0.0", "0.9.0"]) == "1.0.0"
    assert semver.chosen("1.0.0+zzz", ["1.0.0+b", "0.9.0"]) == "1.0.0+b"


def test_the_ranges_include_matches_misses_and_errors(helm_choices: dict[str, str], tmp_path: Path) -> None:
    assert {"none", "improper"} < set(helm_choices.values())
    assert len(set(helm_choices.values())) > 8


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", "1.2.3"),
        ("^1", "1.2.3"),
        ("1", "1"),
        ("~1.3", "v1.3.0"),
        ("1.4", "1.4"),
        ("v1.3.0", "v1.3.0"),
        (">=2.0.0-0", "2.0.0-rc.1"),
        ("~1.2.0-0", "1.2.3"),
        ("3.x", "03.0.0"),
        ("^4", None),
    ],
)
def test_incomplete_tags_and_those_with_a_v_count_last(wanted: str, found: str | None) -> None:
    tags = ["1", "1.2", "1.2.3", "1.2.3+b", "v1.3.0", "1.4", "2.0.0-rc.1", "v2.0.0-rc.2", "03.0.0", "latest"]
    assert semver.chosen_tag(wanted, tags) == found
