"""Reports as TestNG, Allure, Jest, Vitest, RSpec, Playwright, SimpleCov, Istanbul and Visual Studio write them, cut."""

from __future__ import annotations

import json
from typing import Any

TESTNG = """<?xml version="1.0" encoding="UTF-8"?>
<testng-results retried="1" ignored="1" total="9" passed="2" failed="2" skipped="3">
  <reporter-output><line><![CDATA[hello]]></line></reporter-output>
  <suite started-at="2026-01-01T00:00:00 UTC" name="Suite" finished-at="2026-01-01T00:00:01 UTC" duration-ms="407">
    <groups></groups>
    <test started-at="2026-01-01T00:00:00 UTC" name="Unit" finished-at="2026-01-01T00:00:01 UTC" duration-ms="407">
      <class name="shop.CartTest">
        <test-method is-config="true" signature="before()" name="before" duration-ms="9" status="PASS">
          <reporter-output><line><![CDATA[hello]]></line></reporter-output>
        </test-method> <!-- before -->
        <test-method signature="adds()" name="adds" duration-ms="8" status="PASS">
          <reporter-output><line><![CDATA[a line]]></line></reporter-output>
        </test-method>
        <test-method signature="row(int)" name="row" data-provider="rows" duration-ms="9" status="PASS">
          <params><param index="0"><value><![CDATA[1]]></value></param></params>
        </test-method>
        <test-method signature="row(int)" name="row" data-provider="rows" duration-ms="12" status="FAIL">
          <params><param index="0"><value><![CDATA[2]]></value></param></params>
          <exception class="java.lang.AssertionError">
            <message><![CDATA[expected [1] but found [2]]]></message>
            <full-stacktrace><![CDATA[java.lang.AssertionError: expected
at shop.CartTest.row(CartTest.java:8)]]></full-stacktrace>
          </exception>
        </test-method>
        <test-method retried="true" signature="flaky()" name="flaky" duration-ms="13" status="SKIP"/>
        <test-method signature="flaky()" name="flaky" duration-ms="1" status="PASS"/>
        <test-method depends-on-methods="shop.CartTest.row" signature="later()" name="later" duration-ms="0"
          status="SKIP"/>
      </class>
      <class name="shop.BrokenTest">
        <test-method is-config="true" signature="before()" name="before" duration-ms="1" status="FAIL">
          <exception class="java.lang.IllegalStateException"><message><![CDATA[setup]]></message></exception>
        </test-method>
        <test-method signature="one()" name="one" duration-ms="0" status="SKIP"/>
      </class>
    </test>
  </suite>
</testng-results>"""

ALLURE: dict[str, Any] = {
    "name": "test_no", "status": "failed",
    "statusDetails": {"message": "AssertionError: assert 1 == 2", "trace": "def test_no():\n>   assert 1 == 2"},
    "attachments": [{"name": "log", "source": "1-attachment.txt", "type": "text/plain"}],
    "steps": [{"name": "pay", "status": "failed", "attachments": [{"name": "s", "source": "2-attachment.png"}]}],
    "start": 1795808506308, "stop": 1795808506320, "uuid": "58435c42-e281-4422-9672-9842be4ccc63",
    "historyId": "1d49b8f57dd013b8834309796b5825b8", "testCaseId": "1d49b8f57dd013b8834309796b5825b8",
    "fullName": "t.test_a#test_no",
    "labels": [{"name": "parentSuite", "value": "t"}, {"name": "suite", "value": "test_a"}],
}  # fmt: skip
ALLURE_CONTAINER: dict[str, Any] = {
    "uuid": "70a56ad0-0a18-4a32-87c1-a4979dba31db", "children": [ALLURE["uuid"]],
    "befores": [{"name": "database", "status": "broken", "statusDetails": {"message": "no server"}}],
}  # fmt: skip


def jest_test(title: str, status: str = "passed", *messages: str, **more: Any) -> dict[str, Any]:
    return {"ancestorTitles": ["math"], "fullName": f"math {title}", "status": status, "title": title, "duration": 2,
            "failureMessages": [*messages], **more}  # fmt: skip


JEST: dict[str, Any] = {
    "numFailedTestSuites": 2, "numFailedTests": 1, "numPassedTestSuites": 0, "numPassedTests": 2, "numPendingTests": 1,
    "numRuntimeErrorTestSuites": 1, "numTodoTests": 1, "numTotalTestSuites": 2, "numTotalTests": 5, "success": False,
    "testResults": [
        {"assertionResults": [
            jest_test("adds"), jest_test("flaky", invocations=2),
            jest_test("fails", "failed", "\x1b[31mError: expected 3\x1b[39m\n    at a.test.js:3:41"),
            jest_test("later", "pending"), jest_test("some day", "todo"),
        ], "endTime": 2, "message": "x", "name": "/src/a.test.js", "startTime": 1, "status": "failed", "summary": ""},
        {"assertionResults": [], "endTime": 2, "message": "  \x1b[1m● Test suite failed to run\x1b[22m\n\n  at b:1",
         "name": "/src/b.test.js", "startTime": 1, "status": "failed", "summary": ""},
    ],
}  # fmt: skip

RSPEC: dict[str, Any] = {
    "version": "3.12.0",
    "messages": ["\nAn error occurred while loading ./spec/b_spec.rb.\nFailure/Error: raise 'load'\n"],
    "examples": [
        {"id": "./spec/a_spec.rb[1:1]", "description": "costs", "full_description": "Shop costs", "status": "passed",
         "file_path": "./spec/a_spec.rb", "line_number": 5, "run_time": 0.005, "pending_message": None},
        {"id": "./spec/a_spec.rb[1:2]", "description": "costs", "full_description": "Shop costs", "status": "failed",
         "file_path": "./spec/a_spec.rb", "line_number": 6, "run_time": 0.12, "pending_message": None,
         "exception": {"class": "RSpec::Expectations::ExpectationNotMetError",
                       "message": "\nexpected: 5\n     got: 1\n",
                       "backtrace": ["./spec/a_spec.rb:6:in `block'", "/usr/bin/rspec:4:in `<main>'"]}},
        {"id": "./spec/a_spec.rb[1:3]", "description": "later", "full_description": "Shop later", "status": "pending",
         "file_path": "./spec/a_spec.rb", "line_number": 7, "run_time": 1e-05, "pending_message": "not yet"},
    ],
    "summary": {"duration": 0.2, "example_count": 3, "failure_count": 1, "pending_count": 1,
                "errors_outside_of_examples_count": 1},
    "summary_line": "3 examples, 1 failure, 1 pending, 1 error occurred outside of examples",
}  # fmt: skip


def playwright_test(project: str, status: str, *results: str) -> dict[str, Any]:
    attempts = [
        {"workerIndex": 0, "status": result, "duration": 20, "errors": [], "stdout": [{"text": "hello\n"}],
         "stderr": [], "retry": retry, "startTime": "2026-01-01T00:00:00Z",
         "attachments": [{"name": "trace", "contentType": "application/zip", "path": f"out/trace-{retry}.zip"}],
         **({} if result in ("passed", "skipped") else {
             "error": {"message": "\x1b[31mError: expect\x1b[39m", "stack": "Error: expect\n    at a.spec.ts:4"}})}
        for retry, result in enumerate(results)
    ]  # fmt: skip
    return {"timeout": 30000, "annotations": [], "expectedStatus": "passed", "projectId": project,
            "projectName": project, "results": attempts, "status": status}  # fmt: skip


def _spec(title: str, *tests: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "ok": True, "tags": [], "tests": [*tests], "id": "1", "file": "a.spec.ts", "line": 3}


PLAYWRIGHT: dict[str, Any] = {
    "config": {"configFile": "/src/playwright.config.ts", "rootDir": "/src", "projects": [{"name": "chromium"}]},
    "suites": [{
        "title": "a.spec.ts", "file": "a.spec.ts", "column": 0, "line": 0, "specs": [],
        "suites": [{
            "title": "cart", "file": "a.spec.ts", "line": 2, "column": 6,
            "specs": [
                _spec("adds", playwright_test("chromium", "expected", "passed"),
                      playwright_test("firefox", "unexpected", "failed", "timedOut")),
                _spec("later", playwright_test("chromium", "skipped", "skipped")),
            ],
            "suites": [{"title": "inner", "file": "a.spec.ts", "line": 6, "column": 3, "specs": [
                _spec("flaky", playwright_test("chromium", "flaky", "failed", "passed"))]}],
        }, {"title": "pay", "file": "a.spec.ts", "line": 9, "column": 6, "specs": [
            _spec("by card", playwright_test("chromium", "skipped"))]}],
    }],
    "errors": [{"message": "Error: Cannot find module './missing'\nRequire stack:", "location": {"line": 1}}],
    "stats": {"startTime": "2026-01-01T00:00:00Z", "duration": 40, "expected": 1, "skipped": 2, "unexpected": 1,
              "flaky": 1},
}  # fmt: skip

RESULTSET = """{"RSpec": {"coverage": {
  "/src/lib/shop.rb": {"lines": [1, 1, 2, 2, null, 0, null, "ignored"],
    "branches": {"[:if, 0, 3, 4, 7, 7]": {"[:then, 1, 4, 6, 4, 7]": 2, "[:else, 2, 6, 6, 6, 7]": 0}}},
  "/src/lib/old.rb": [null, 1, 0]}, "timestamp": 1795808499},
 "Minitest": {"coverage": {
  "/src/lib/shop.rb": {"lines": [1, 0, 0, 0, null, 3, null, "ignored"],
    "branches": {"[:if, 0, 3, 4, 7, 7]": {"[:then, 1, 4, 6, 4, 7]": 0, "[:else, 2, 6, 6, 6, 7]": 3}}}},
  "timestamp": 1795808500.5}}"""

SIMPLECOV_JSON = """{"meta": {"simplecov_version": "0.21.2"}, "coverage": {
  "/src/lib/shop.rb": {"lines": [1, 0, null, "ignored"], "branches": [
    {"type": "then", "start_line": 2, "end_line": 2, "coverage": 1},
    {"type": "then", "start_line": 2, "end_line": 2, "coverage": 0}]}}, "groups": {}}"""


def _statement(line: int, column: int = 0) -> dict[str, dict[str, int]]:
    return {"start": {"line": line, "column": column}, "end": {"line": line + 1, "column": 1}}


ISTANBUL = json.dumps({
    "/src/lib.js": {
        "path": "/src/lib.js",
        "statementMap": {"0": _statement(1), "1": _statement(2), "2": _statement(2, 9), "3": _statement(3)},
        "fnMap": {"0": {"name": "f", "decl": _statement(1), "loc": _statement(1), "line": 1}},
        "branchMap": {"0": {"loc": _statement(2), "type": "if", "locations": [_statement(2), _statement(3)], "line": 2},
                      "1": {"loc": _statement(2), "type": "default-arg", "locations": [_statement(2)], "line": 2}},
        "s": {"0": 1, "1": 0, "2": 4, "3": 0}, "f": {"0": 1}, "b": {"0": [1, 0], "1": [2]},
        "_coverageSchema": "1a1c01bbd47fc00a2c39e90264f33305004495a9", "hash": "9dce1f2ae5bd",
    },
    "/src/types.js": {"path": "/src/types.js", "statementMap": {}, "fnMap": {}, "branchMap": {}, "s": {}, "f": {},
                      "b": {}},
})  # fmt: skip

VISUAL_STUDIO = """<?xml version="1.0" standalone="yes"?>
<CoverageDSPriv>
  <xs:schema id="CoverageDSPriv" xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="Module"/></xs:schema>
  <Module><ModuleName>shop.dll</ModuleName><LinesCovered>2</LinesCovered><LinesNotCovered>2</LinesNotCovered>
    <NamespaceTable><Class><ClassName>Cart</ClassName><Method><MethodName>Add()</MethodName>
      <Lines><LnStart>10</LnStart><ColStart>9</ColStart><LnEnd>11</LnEnd><ColEnd>10</ColEnd><Coverage>0</Coverage>
        <SourceFileID>1</SourceFileID><LineID>0</LineID></Lines>
      <Lines><LnStart>12</LnStart><ColStart>9</ColStart><LnEnd>12</LnEnd><ColEnd>10</ColEnd><Coverage>1</Coverage>
        <SourceFileID>1</SourceFileID><LineID>1</LineID></Lines>
      <Lines><LnStart>13</LnStart><ColStart>9</ColStart><LnEnd>14</LnEnd><ColEnd>10</ColEnd><Coverage>2</Coverage>
        <SourceFileID>1</SourceFileID><LineID>2</LineID></Lines>
      <Lines><LnStart>5</LnStart><LnEnd>5</LnEnd><Coverage>2</Coverage><SourceFileID>7</SourceFileID></Lines>
    </Method></Class></NamespaceTable></Module>
  <SourceFileNames><SourceFileID>1</SourceFileID><SourceFileName>C:\\src\\Cart.cs</SourceFileName></SourceFileNames>
</CoverageDSPriv>"""

DOTNET_COVERAGE = """<?xml version="1.0" encoding="utf-8" standalone="yes"?>
<results><modules>
  <module id="C1" name="shop.dll" path="shop.dll" lines_covered="2" lines_partially_covered="1" lines_not_covered="2">
    <functions><function id="1" name="Add()" type_name="Cart" lines_covered="2">
      <ranges>
        <range source_id="0" start_line="10" end_line="11" start_column="9" end_column="10" covered="yes" />
        <range source_id="0" start_line="12" end_line="12" start_column="9" end_column="10" covered="partial" />
        <range source_id="0" start_line="13" end_line="14" start_column="9" end_column="10" covered="no" />
      </ranges></function></functions>
    <source_files><source_file id="0" path="C:\\src\\Cart.cs" checksum_type="SHA256" checksum="AD" /></source_files>
    <skipped_functions><skipped_function id="2" name="Main()" reason="attribute_excluded" /></skipped_functions>
  </module>
  <module id="C2" name="pay.dll" path="pay.dll" lines_covered="0" lines_partially_covered="0" lines_not_covered="1">
    <functions><function id="1" name="Pay()"><ranges>
        <range source_id="0" start_line="3" end_line="3" start_column="9" end_column="10" covered="no" />
      </ranges></function></functions>
    <source_files><source_file id="0" path="C:\\src\\Pay.cs" /></source_files></module>
</modules><skipped_modules><skipped_module name="x.dll" reason="no_symbols" /></skipped_modules></results>"""

RUNNERS: dict[str, tuple[str, tuple[int, int, int, int, int]]] = {
    "TestNG": (TESTNG, (7, 1, 1, 2, 1)),
    "Allure results": (json.dumps(ALLURE), (1, 1, 0, 0, 0)),
    "Jest JSON": (json.dumps(JEST), (6, 1, 1, 2, 1)),
    "RSpec JSON": (json.dumps(RSPEC), (4, 1, 1, 1, 0)),
    "Playwright JSON": (json.dumps(PLAYWRIGHT), (6, 1, 1, 2, 1)),
}
"""Tests, failed, errors, skipped, flaky."""

MEASURED: dict[str, tuple[str, tuple[int, int, int | None, int | None]]] = {
    "SimpleCov": (RESULTSET, (6, 1, 2, 0)),
    "Istanbul": (ISTANBUL, (2, 1, 2, 1)),
    "Visual Studio coverage": (VISUAL_STUDIO, (3, 2, None, None)),
    "dotnet-coverage": (DOTNET_COVERAGE, (3, 3, None, None)),
}
"""Lines covered and missed, branches taken and not taken."""

WITHOUT_CONTENT = {
    "TestNG": '<testng-results skipped="0" failed="0" total="0" passed="0"><reporter-output/></testng-results>',
    "Allure results": json.dumps({"uuid": "1", "children": [], "befores": [], "afters": []}),
    "Jest JSON": '{"numTotalTestSuites": 0, "numTotalTests": 0, "success": true, "testResults": []}',
    "RSpec JSON": '{"version": "3.1", "examples": [], "summary": {"example_count": 0}, "summary_line": "0 examples"}',
    "Playwright JSON": '{"config": {"rootDir": "/src"}, "suites": [], "errors": [], "stats": {"expected": 0}}',
    "Cucumber JSON": "[]",
    "SimpleCov": '{"RSpec": {"coverage": {}, "timestamp": 1795808499}}',
    "Istanbul": "{}",
    "Visual Studio coverage": "<CoverageDSPriv/>",
    "dotnet-coverage": "<results><modules/><skipped_modules/></results>",
}
