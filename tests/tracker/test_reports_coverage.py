"""Coverage reports: covered and total lines of each file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from report_readers import read_coverage_report

from models.tracker.coverage.line_sets import pack, source_lines
from models.tracker.reports.base import BadReport, CoverageReport, FileCoverage, Limits, ReportTooLarge

Totals = tuple[int | None, int | None]


def totals(report: CoverageReport) -> Totals:
    return report.line_covered, report.line_missed


def covered(file: FileCoverage) -> list[int]:
    return sorted(line for line, hit in (file.lines or {}).items() if hit)


def missed(file: FileCoverage) -> list[int]:
    return sorted(line for line, hit in (file.lines or {}).items() if not hit)


# --- JaCoCo ---

DOCTYPE = '<?xml version="1.0"?><!DOCTYPE report PUBLIC "-//JACOCO//DTD Report 1.1//EN" "report.dtd">'


def counter(covered: int, missed: int, kind: str = "LINE") -> str:
    return f'<counter type="{kind}" missed="{missed}" covered="{covered}"/>'


def source(name: str, lines: str = "", *counters: str) -> str:
    return f'<sourcefile name="{name}">{lines}{"".join(counters)}</sourcefile>'


def package(*inside: str, name: str = "com/x") -> str:
    return f'<package name="{name}">{"".join(inside)}</package>'


def jacoco(*inside: str) -> str:
    return f'{DOCTYPE}<report name="r"><sessioninfo id="s" start="1" dump="2"/>{"".join(inside)}</report>'


HIT, MISS = '<line nr="3" mi="0" ci="2" mb="1" cb="1"/>', '<line nr="4" mi="2" ci="0" mb="0" cb="0"/>'
PARTLY = '<line nr="5" mi="1" ci="1" mb="0" cb="0"/>'


def test_jacoco_report_has_its_files() -> None:
    report, files = read_coverage_report(
        jacoco(package(source("A.java", HIT + MISS + PARTLY, counter(2, 1))), counter(2, 1))
    )
    assert (report.format, totals(report)) == ("JaCoCo", (2, 1))
    file = files["com/x/A.java"]
    assert (file.line_covered, file.line_missed, file.branch_covered, file.branch_missed) == (2, 1, 1, 1)
    assert (covered(file), missed(file)) == ([3, 5], [4])


JACOCO: dict[str, tuple[str, Totals]] = {
    "its own counter": (jacoco(package(source("A", HIT, counter(1, 0)), counter(5, 5)), counter(10, 2)), (10, 2)),
    "never of classes": (
        jacoco(package(f"<class>{counter(7, 7)}<method>{counter(9, 9)}</method></class>", counter(3, 1))), (3, 1),
    ),
    "the packages, without its own": (jacoco(package(counter(3, 1)), package(counter(2, 2), name="y")), (5, 3)),
    "packages in groups": (jacoco(f'<group name="g">{package(counter(3, 1))}{counter(3, 1)}</group>'), (3, 1)),
    "groups without packages": (
        jacoco(f'<group name="g"><group name="h">{counter(3, 1)}</group>{counter(3, 1)}</group>'), (3, 1),
    ),
    "the files, without any": (jacoco(package(source("A", "", counter(3, 1)), source("B", HIT + MISS))), (4, 2)),
    "nothing": (jacoco(), (None, None)),
    "no lines": (jacoco(package(source("A")), counter(4, 2, "INSTRUCTION")), (None, None)),
    "a counter of nothing": (jacoco(counter(0, 0)), (None, None)),
    "a counter of nonsense": (jacoco('<counter type="LINE" missed="-3" covered="x"/>'), (None, None)),
    "nothing covered": (jacoco(counter(0, 3)), (0, 3)),
}  # fmt: skip


@pytest.mark.parametrize("what", JACOCO)
def test_totals_of_jacoco(what: str) -> None:
    document, wanted = JACOCO[what]
    assert totals(read_coverage_report(document)[0]) == wanted


def test_jacoco_file_without_lines_has_its_counters() -> None:
    file = read_coverage_report(jacoco(package(source("A", "", counter(3, 1), counter(2, 2, "BRANCH")))))[1]["com/x/A"]
    assert (file.line_covered, file.line_missed, file.branch_covered, file.lines) == (3, 1, 2, None)


def test_same_file_in_two_jacoco_groups_is_two_files() -> None:
    modules = "".join(f'<group name="{name}">{package(source("A", HIT))}</group>' for name in ("m", "n"))
    same = f'<group name="n">{package(source("A", MISS))}</group>'
    report, files = read_coverage_report(jacoco(f'<group name="all">{modules}{same}</group>'))
    assert list(files) == ["com/x/A", "all/n/com/x/A", "all/n/com/x/A (2)"]
    assert totals(report) == (2, 1)


# --- Cobertura ---


def klass(name: str, *lines: tuple[int, int], methods: str = "") -> str:
    result = "".join(f'<line number="{line}" hits="{hits}"/>' for line, hits in lines)
    return f'<class name="c" filename="{name}"><methods>{methods}</methods><lines>{result}</lines></class>'


def cobertura(*classes: str, attributes: str = "") -> str:
    doctype = '<!DOCTYPE coverage SYSTEM "http://cobertura.sourceforge.net/xml/coverage-04.dtd">'
    inside = f'<packages><package name="p"><classes>{"".join(classes)}</classes></package></packages>'
    return f'<?xml version="1.0"?>{doctype}<coverage line-rate="0.5" {attributes}><sources/>{inside}</coverage>'


METHOD = '<method name="m"><lines><line number="1" hits="1"/><line number="9" hits="0"/></lines></method>'
COBERTURA: dict[str, tuple[str, Totals]] = {
    "lines": (cobertura(klass("a.py", (1, 1), (2, 0), (3, 5))), (2, 1)),
    "a version alone": (cobertura(klass("a.py", (1, 1))).replace('line-rate="0.5"', 'version="1.9"'), (1, 0)),
    "no sources": ('<coverage version="1"><packages>' + klass("a.py", (1, 1)) + "</packages></coverage>", (1, 0)),
    "the root wins": (cobertura(klass("a.py", (1, 1)), attributes='lines-covered="44" lines-valid="53"'), (44, 9)),
    "a root of nothing": (cobertura(klass("a.py", (1, 1)), attributes='lines-covered="0" lines-valid="0"'), (1, 0)),
    "a root that cannot be": (cobertura(klass("a.py", (1, 1)), attributes='lines-covered="9" lines-valid="3"'), (1, 0)),
    "half a root": (cobertura(klass("a.py", (1, 1)), attributes='lines-covered="9"'), (1, 0)),
    "methods repeat lines": (cobertura(klass("a.py", (1, 1), (9, 0), methods=METHOD)), (1, 1)),
    "lines in methods alone": (cobertura(klass("a.py", methods=METHOD)), (1, 1)),
    "classes of one file": (cobertura(klass("a.py", (1, 1), (2, 0)), klass("a.py", (2, 1), (3, 0))), (2, 1)),
    "a line twice": (cobertura(klass("a.py", (1, 0), (1, 1), (1, 0))), (1, 0)),
    "nothing": (cobertura(), (None, None)),
    "large and odd hits": (
        cobertura('<class filename="a"><lines><line number="1" hits="99999999999999999999"/>'
                  '<line number="2" hits="1e+06"/><line number="3" hits="-1"/><line number="4"/></lines></class>'),
        (2, 2),
    ),
    "numbers of no line": (
        cobertura('<class filename="a"><lines><line number="-1" hits="1"/><line number="99999999999" hits="1"/>'
                  '<line number="x" hits="1"/><line hits="1"/><line number="5" hits="1"/></lines></class>'),
        (1, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", COBERTURA)
def test_totals_of_cobertura(what: str) -> None:
    document, wanted = COBERTURA[what]
    report, _ = read_coverage_report(document)
    assert (report.format, totals(report)) == ("Cobertura", wanted)


def test_cobertura_counts_each_file_once_with_its_branches() -> None:
    branches = (
        '<class filename="src\\a.cs"><lines><line number="7" hits="1" condition-coverage="50% (1/2)"/></lines></class>'
    )
    report, files = read_coverage_report(cobertura(branches, klass("src/a.cs", (8, 0)), klass("b", (1, 1))))
    assert sorted(files) == ["b", "src/a.cs"]
    file = files["src/a.cs"]
    assert (covered(file), missed(file), file.branch_covered, file.branch_missed) == ([7], [8], 1, 1)
    assert (report.branch_covered, report.branch_missed) == (1, 1)


# --- LCOV ---

LCOV: dict[str, tuple[str, Totals]] = {
    "a record": ("TN:\nSF:a.c\nDA:1,1\nDA:2,0\nend_of_record\n", (1, 1)),
    "without a test name": ("SF:a.c\nDA:1,1\nend_of_record", (1, 0)),
    "after a comment": ("# made by x\nTN:t\nSF:a.c\nDA:1,1\nend_of_record\n", (1, 0)),
    "LF and LH that are wrong": ("SF:a.c\nDA:1,1\nDA:2,0\nLF:90\nLH:80\nend_of_record\n", (1, 1)),
    "a file twice": ("SF:a.c\nDA:1,1\nDA:2,0\nend_of_record\nSF:a.c\nDA:2,3\nDA:3,0\nend_of_record\n", (2, 1)),
    "a line twice": ("SF:a.c\nDA:1,0\nDA:1,2\nDA:1,0\nend_of_record\n", (1, 0)),
    "large counts": ("SF:a.c\nDA:1,2874063630\nDA:2,99999999999999999999999\nend_of_record\n", (2, 0)),
    "negative counts": ("SF:a.c\nDA:1,-1\nDA:2,1\nend_of_record\n", (1, 1)),
    "checksums": ("SF:a.c\nDA:1,1,Pbk1yyq\nDA:2,0,x,y\nend_of_record\n", (1, 1)),
    "counts of 1e+06": ("SF:a.c\nDA:1,1e+06\nend_of_record\n", (1, 0)),
    "what is no count": ("SF:a.c\nDA:1,NaN\nDA:NaN,1\nDA:5\nDA:,\nDA:-3,1\nDA:2,1\nend_of_record\n", (1, 0)),
    "a branch makes no line": ("SF:a.c\nDA:1,0\nBRDA:1,0,0,4\nend_of_record\n", (0, 1)),
    "no end but the last": ("SF:a.c\nDA:1,1\nSF:b.c\nDA:1,0\nend_of_record\n", (1, 1)),
    "windows": ("TN:\r\nSF:a.c\r\nDA:1,1\r\nend_of_record\r\n", (1, 0)),
    "no lines": ("TN:\nSF:a.c\nend_of_record\n", (None, None)),
    "other words": ("TN:\nSF:a.c\nVER:1\nFN:1,f\nFNDA:1,f\nDA:1,1\nend_of_record\nEOF\n", (1, 0)),
}


@pytest.mark.parametrize("size", [1 << 30, 3])
@pytest.mark.parametrize("what", LCOV)
def test_totals_of_lcov(what: str, size: int) -> None:
    document, wanted = LCOV[what]
    report, _ = read_coverage_report(document, at_once=size)
    assert (report.format, totals(report)) == ("LCOV", wanted)


def test_line_0_counts_nowhere() -> None:
    """Some writers of LCOV have it for a file without code, and coverage.py for an empty file."""
    _, files = read_coverage_report("SF:a.c\nDA:0,1\nDA:1,0\nend_of_record\nSF:b.c\nDA:0,1\nend_of_record\n")
    assert {path: (covered(file), missed(file)) for path, file in files.items()} == {"a.c": ([], [1])}
    document = '{"files": {"a.py": {"executed_lines": [0, 2], "missing_lines": []}}, "totals": {}}'
    report, files = read_coverage_report(document)
    assert (covered(files["a.py"]), report.line_covered, report.line_missed) == ([2], 1, 0)


def test_lcov_counts_each_file_once() -> None:
    record = "SF:C:\\x\\a.c\nDA:1,{}\nDA:2,0\nBRDA:1,0,0,{}\nBRDA:1,0,1,-\nend_of_record\n"
    _, files = read_coverage_report(record.format(0, 0) + record.format(1, 2))
    file = files["C:/x/a.c"]
    assert (covered(file), missed(file), file.branch_covered, file.branch_missed) == ([1], [2], 1, 1)


@pytest.mark.parametrize(
    "records", [("DA:1,0\nBRDA:1,0,0,-\nBRDA:1,0,1,-",), ("DA:1,0\nBRDA:1,0,0,-\nBRDA:1,0,1,-", "DA:1,1")]
)
def test_branches_of_a_file_count_if_none_of_them_is_covered(records: tuple[str, ...]) -> None:
    report, files = read_coverage_report("".join(f"SF:a.c\n{record}\nend_of_record\n" for record in records))
    assert (files["a.c"].branch_covered, files["a.c"].branch_missed) == (0, 2)
    assert (report.branch_covered, report.branch_missed) == (0, 2)


# --- OpenCover ---


def point(line: int, column: int, hits: int, file: str = 'fileid="1"') -> str:
    return f'<SequencePoint vc="{hits}" sl="{line}" sc="{column}" el="{line}" ec="99" {file}/>'


def opencover(*modules: str) -> str:
    return (
        f"\ufeff<?xml version='1.0'?><CoverageSession><Summary/><Modules>{''.join(modules)}</Modules></CoverageSession>"
    )


def module(*points: str, ref: str = "") -> str:
    files = '<Files><File uid="1" fullPath="C:\\x\\A.cs"/><File uid="2" fullPath="B.cs"/></Files>'
    method = f"<Method>{ref}<SequencePoints>{''.join(points)}</SequencePoints></Method>"
    return f"<Module>{files}<Classes><Class><Methods>{method}</Methods></Class></Classes></Module>"


OPENCOVER: dict[str, tuple[str, Totals]] = {
    "points": (opencover(module(point(1, 1, 1), point(2, 1, 0))), (1, 1)),
    "points of one line": (opencover(module(point(1, 1, 1), point(1, 20, 0))), (1, 1)),
    "a module twice": (opencover(module(point(1, 1, 0)), module(point(1, 1, 3))), (1, 0)),
    "the file of the method": (opencover(module(point(1, 1, 1, ""), ref='<FileRef uid="2"/>')), (1, 0)),
    "points without a file": (
        opencover(module(point(1, 1, 1), point(2, 1, 1, ""), point(3, 1, 0, 'fileid="0"'))), (1, 0),
    ),
    "only points without a file": (
        opencover(module(point(2, 1, 1, ""))).replace(
            "<Summary/>", '<Summary numSequencePoints="10" visitedSequencePoints="4"/>'
        ),
        (None, None),
    ),
    "hidden points": (opencover(module(point(0xFEEFEE, 0, 1), point(1, 1, 1))), (1, 0)),
    "a skipped module": (opencover('<Module skippedDueTo="Filter"><ModulePath>x</ModulePath></Module>'), (None, None)),
    "a summary alone": (
        '<CoverageSession><Summary numSequencePoints="10" visitedSequencePoints="4"/></CoverageSession>', (4, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OPENCOVER)
def test_totals_of_opencover(what: str) -> None:
    document, wanted = OPENCOVER[what]
    report, _ = read_coverage_report(document)
    assert (report.format, totals(report)) == ("OpenCover", wanted)


@pytest.mark.parametrize(
    ("line", "branches"),
    [('sl="1"', (1, 1)), ("", (1, 1)), ('sl="16707566"', (None, None))],
    ids=["line", "old", "hidden"],
)
def test_opencover_branches(line: str, branches: tuple[int | None, int | None]) -> None:
    points = [f'<BranchPoint vc="{hits}" path="{hits}" {line}/>' for hits in (0, 1)]
    report, _ = read_coverage_report(opencover(module(point(1, 1, 1, ""), *points, ref='<FileRef uid="2"/>')))
    assert (report.branch_covered, report.branch_missed) == branches


def test_opencover_point_has_its_line() -> None:
    _, files = read_coverage_report(opencover(module(point(7, 9, 1), point(7, 30, 0))))
    assert source_lines(pack(list(files["C:/x/A.cs"].lines or ()))) == {7}


# --- Clover ---


def clover(inside: str) -> str:
    return f'<coverage generated="1" clover="3.2"><project name="p">{inside}</project></coverage>'


STATEMENTS = (
    '<line num="1" type="method" count="1"/><line num="2" type="stmt" count="3"/><line num="3" type="stmt" count="0"/>'
)
METRICS = '<metrics statements="9" coveredstatements="6" conditionals="4" coveredconditionals="1"/>'
CLOVER: dict[str, tuple[str, Totals]] = {
    "its own metrics": (clover(METRICS + f'<file name="/x/a">{STATEMENTS}<metrics statements="2"/></file>'), (6, 3)),
    "its lines, without": (clover(f'<file name="/x/a">{STATEMENTS}</file>'), (1, 1)),
    "metrics of nothing": (clover(f'<metrics statements="0"/><file name="/x/a">{STATEMENTS}</file>'), (1, 1)),
    "lines of Istanbul": (
        clover('<file name="a.js"><line num="1" count="1" type="cond" truecount="1" falsecount="0"/></file>'), (1, 0),
    ),
    "a condition beside its statement": (
        clover('<file name="a"><line num="1" type="stmt" count="1"/><line num="1" type="cond" truecount="0"/></file>'),
        (1, 0),
    ),
    "code of tests": (
        '<coverage clover="3"><project/><testproject><file name="t"><line num="1" type="stmt" count="1"/></file>'
        "</testproject></coverage>", (None, None),
    ),
    "no mark of clover": (f'<coverage><project><file name="a">{STATEMENTS}</file></project></coverage>', (1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("what", CLOVER)
def test_totals_of_clover(what: str) -> None:
    document, wanted = CLOVER[what]
    report, _ = read_coverage_report(document)
    assert (report.format, totals(report)) == ("Clover", wanted)


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ('<file name="a.js" path="/src/a.js">', "/src/a.js"),
        ('<file name="C:\\x\\A.java">', "C:/x/A.java"),
        ('<file name="A.java">', "com/x/A.java"),
    ],
)
def test_path_of_a_clover_file(file: str, path: str) -> None:
    report, files = read_coverage_report(clover(f'<package name="com.x">{file}{STATEMENTS}{METRICS}</file></package>'))
    assert list(files) == [path]
    assert (files[path].branch_covered, files[path].branch_missed) == (1, 3)
    assert report.branch_covered == 1


# --- coverage.py ---


def py(files: dict[str, Any], **more: Any) -> str:
    return json.dumps({"meta": {"version": "7"}, "files": files, **more})


ONE = {
    "executed_lines": [1, 3], "missing_lines": [2], "summary": {"covered_branches": 1, "missing_branches": 2},
    "functions": {"f": {"executed_lines": [1, 99], "missing_lines": [77], "summary": {"covered_lines": 9}}},
}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 1])
def test_coverage_py_report(indent: int | None) -> None:
    result = json.loads(py({"a.b/c.py": ONE}, totals={"covered_lines": 2, "missing_lines": 1, "percent_covered": 50}))
    report, files = read_coverage_report(json.dumps(result, indent=indent))
    assert (report.format, totals(report)) == ("coverage.py JSON", (2, 1))
    file = files["a.b/c.py"]
    assert (covered(file), missed(file), file.branch_covered, file.branch_missed) == ([1, 3], [2], 1, 2)


PY: dict[str, tuple[str, Totals]] = {
    "its totals": (py({"a": ONE}, totals={"covered_lines": 20, "missing_lines": 10}), (20, 10)),
    "its files, without": (py({"a": ONE, "b": {"executed_lines": [], "missing_lines": [5]}}), (2, 2)),
    "sums alone": (py({"a": {"summary": {"covered_lines": 3, "missing_lines": 1}}}), (3, 1)),
    "nothing": (py({}, totals={"covered_lines": 0, "missing_lines": 0, "percent_covered": 100}), (None, None)),
    "nonsense": (py({"a": {"executed_lines": [-1, "x", 10**30, 4, None]}}, totals={"covered_lines": "x"}), (1, 0)),
    "totals first": ('{"totals": {"covered_lines": 1, "missing_lines": 1}, "files": {}}', (1, 1)),
}


@pytest.mark.parametrize("what", PY)
def test_totals_of_coverage_py(what: str) -> None:
    document, wanted = PY[what]
    assert totals(read_coverage_report(document)[0]) == wanted


# --- Go ---

GO: dict[str, tuple[str, Totals]] = {
    "statements": ("mode: set\nx/a.go:1.10,3.2 3 1\nx/a.go:5.1,6.2 2 0\n", (3, 2)),
    "a block twice": ("mode: count\nx/a.go:1.10,3.2 3 0\nx/a.go:1.10,3.2 3 7\nx/a.go:1.10,3.2 3 0\n", (3, 0)),
    "profiles one after the other": ("mode: atomic\na.go:1.1,2.2 1 1\nmode: atomic\na.go:1.1,2.2 1 0\n", (1, 0)),
    "blocks of one line": ("mode: set\na.go:1.1,1.9 1 1\na.go:1.10,1.20 1 0\n", (1, 1)),
    "a block of nothing": ("mode: set\na.go:1.1,1.9 0 1\na.go:2.1,2.9 1 1\n", (1, 0)),
    "large counts": ("mode: count\na.go:1.1,1.9 1 18446744073709551615\n", (1, 0)),
    "a path with a colon": ("mode: set\nC:\\x\\a.go:1.1,1.9 1 1\n", (1, 0)),
    "no block": ("mode: set\n", (None, None)),
}


@pytest.mark.parametrize("size", [1 << 30, 3])
@pytest.mark.parametrize("what", GO)
def test_totals_of_go(what: str, size: int) -> None:
    document, wanted = GO[what]
    report, _ = read_coverage_report(document, at_once=size)
    assert (report.format, totals(report)) == ("Go cover profile", wanted)


def test_statements_of_two_go_profiles_are_merged() -> None:
    """As the store does it with the lines of two shards."""
    one = read_coverage_report("mode: set\na.go:1.1,9.2 3 1\na.go:10.1,12.2 2 0\n")[1]["a.go"]
    other = read_coverage_report("mode: set\na.go:1.1,9.2 3 0\na.go:10.1,12.2 2 1\na.go:13.1,14.2 4 0\n")[1]["a.go"]
    assert one.lines is not None
    assert other.lines is not None
    both = set(one.lines) | set(other.lines)
    hit = {*covered(one), *covered(other)}
    assert (len(hit), len(both)) == (5, 9)
    assert max(both) < 2**62


@pytest.mark.parametrize(
    ("blocks", "lines"),
    [
        (["3.10,8.4"], {3, 4, 5, 6, 7, 8}),
        (["3.10,8.2"], {3, 4, 5, 6, 7}),  # the last line has only the closing brace of the function
        (["3.10,3.2", "3.10,1.9"], {3}),
        (["3.10,5.4", "4.1,9.9", "4.2,4.9"], set(range(3, 10))),
        (["1048576.1,1048576.2"], {1048576}),
        (["7.1,9999.9"], set(range(7, 7 + 512))),
    ],
)
def test_a_block_of_go_has_the_lines_from_its_beginning_to_its_end(blocks: list[str], lines: set[int]) -> None:
    _, files = read_coverage_report("mode: set\n" + "".join(f"a.go:{block} 2 1\n" for block in blocks))
    assert source_lines(pack(list(files["a.go"].lines or ()))) == lines


@pytest.mark.parametrize("line", ["ok  x 0.1s coverage: 50%", "a.go:1.1,2.2 1", "a.go:1.1,2.2 99999 1", "a.go:1.1 1 1"])
def test_malformed_go_line_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(BadReport, match="Go cover profile") as bad:
        read_coverage_report(f"mode: set\na.go:1.1,2.2 1 1\n{line}\n")
    assert bad.value.line == 3


def test_number_of_go_statements_is_bounded() -> None:
    blocks = "".join(f"a.go:{line}.1,{line}.2 65535 1\n" for line in range(1, 20))
    with pytest.raises(ReportTooLarge, match="statements"):
        read_coverage_report(f"mode: set\n{blocks}")


# --- all ---


def test_number_of_files_is_bounded_in_every_format() -> None:
    for document in (
        jacoco(package(source("A", HIT), source("B", HIT))),
        cobertura(klass("a", (1, 1)), klass("b", (1, 1))),
        "SF:a\nDA:1,1\nend_of_record\nSF:b\nDA:1,1\nend_of_record\n",
        opencover(module(point(1, 1, 1))),
        clover(f'<file name="a">{STATEMENTS}</file><file name="b">{STATEMENTS}</file>'),
        py({"a": ONE, "b": ONE}),
        "mode: set\na:1.1,2.2 1 1\nb:1.1,2.2 1 1\n",
    ):
        read_coverage_report(document, Limits(files=2))
        with pytest.raises(ReportTooLarge, match="more than 1 source files"):
            read_coverage_report(document, Limits(files=1))


REFUSED = {
    "a test report": ("<testsuites/>", "JUnit is a test report, not a coverage report"),
    "go's tests": ('{"Action":"run","Package":"p"}', "go test -json is a test report"),
    "nothing": ("", "empty"),
    "words": ("TOTAL 87%", "not XML"),
    "half a file": (jacoco()[:-5], "cut short"),
    "an entity": ('<!DOCTYPE report [<!ENTITY a "b">]><report/>', "declares an entity"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_file_that_is_not_a_coverage_report_is_refused(what: str) -> None:
    document, why = REFUSED[what]
    with pytest.raises(BadReport, match=why):
        read_coverage_report(document)
