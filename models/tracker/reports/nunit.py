"""NUnit 3 and xUnit.net v2, which name the same things by other words."""

from __future__ import annotations

from collections.abc import Callable

from models.tracker.reports.base import Case, Limits, TestReport
from models.tracker.reports.case_builder import Draft, Weight
from models.tracker.reports.text_cleaning import Text, count, duration_ms
from models.tracker.reports.totals import Declared, Frame, Tally
from models.tracker.reports.xml_stream import Reader


class _Suites(Reader):
    """What both do alike: suites in suites, and a draft whose texts are elements."""

    format = ""

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        super().__init__(limits)
        self._tally = Tally(sink, limits)
        self._frames: list[Frame] = [self._tally.outside]
        self._draft: Draft | None = None
        self._message: Text | None = None
        self.starts = {
            "failure": self._failure,
            "message": self._told,
            "stack-trace": self._stack,
            "output": self._out,
        }
        self.ends = dict.fromkeys(("message", "stack-trace", "output"), self.hush)

    def report(self, digest: str) -> TestReport:
        return self._tally.report(self.format, digest)

    def _open(self, name: str | None, declared: Declared, listed: bool = True) -> None:
        self._frames.append(self._tally.open(name, self._frames[-1], declared, listed))

    def _close(self) -> None:
        self._tally.close(self._frames.pop())

    def _begin(self, draft: Draft) -> None:
        self._draft = draft
        self._message = None

    def _finish(self) -> None:
        draft = self._draft
        if draft:
            draft.message = self._message.value if self._message else draft.message
            self._tally.add(self._frames[-1], draft)
        self._draft = None

    def _failure(self, attributes: dict[str, str]) -> None:
        if self._draft:
            self._draft.kind = attributes.get("exception-type")

    def _told(self, _attributes: dict[str, str]) -> None:
        if self._draft and self.parent in ("failure", "reason"):
            self._message = self._message or Text(8192)
            self.listen(self._message)

    def _stack(self, _attributes: dict[str, str]) -> None:
        if self._draft and self.parent == "failure":
            self._draft.stack = self._draft.stack or Text(self.limits.output)
            self.listen(self._draft.stack)

    def _out(self, _attributes: dict[str, str]) -> None:
        if self._draft:
            self._draft.out = self._draft.out or Text(self.limits.output)
            self.listen(self._draft.out)


class NUnit(_Suites):
    """`test-run`, `test-suite` at any depth, `test-case`."""

    format = "NUnit 3"

    _results = {
        "passed": Weight.NOTHING,
        "warning": Weight.NOTHING,
        "skipped": Weight.SKIPPED,
        "inconclusive": Weight.SKIPPED,
        "failed": Weight.FAILED,
    }

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        super().__init__(limits, sink)
        self.starts |= {"test-run": self._run, "test-suite": self._suite, "test-case": self._case}
        self.ends |= {"test-run": self._close, "test-suite": self._close, "test-case": self._finish}

    def _run(self, attributes: dict[str, str]) -> None:
        self._open(attributes.get("name"), self._declared(attributes), listed=False)

    def _suite(self, attributes: dict[str, str]) -> None:
        self._open(attributes.get("fullname") or attributes.get("name"), self._declared(attributes))

    def _declared(self, attributes: dict[str, str]) -> Declared:
        get = attributes.get
        skipped = (count(get("skipped")) or 0) + (count(get("inconclusive")) or 0)
        return Declared(count(get("total")), count(get("failed")), None, skipped, duration_ms(get("duration")))

    def _case(self, attributes: dict[str, str]) -> None:
        get = attributes.get
        full, name = get("fullname", ""), get("name") or get("methodname") or get("fullname")
        class_name = get("classname")
        if class_name is None and name and full.endswith(f".{name}"):
            class_name = full[: -len(name) - 1]
        draft = Draft(class_name, name, duration_ms(get("duration") or get("time")))
        weight = self._results.get(get("result", "").lower(), Weight.ERROR)
        if weight is Weight.FAILED and get("label", "").lower() in ("error", "invalid", "cancelled"):
            weight = Weight.ERROR
        draft.weigh(weight)
        self._begin(draft)

    def _failure(self, attributes: dict[str, str]) -> None:
        """A suite's own failure; that a child of it failed is no failure of its own, but then it has a case."""
        if self.parent == "test-suite":
            frame = self._frames[-1]
            frame.broken = frame.broken or Draft(frame.name, "(suite)")
            frame.broken.weigh(Weight.ERROR)
        else:
            super()._failure(attributes)

    def _told(self, attributes: dict[str, str]) -> None:
        if self.path[-3:-1] == ["test-suite", "failure"] and (broken := self._frames[-1].broken):
            broken.stack = broken.stack or Text(self.limits.output)
            self.listen(broken.stack)
        else:
            super()._told(attributes)


class XUnit(_Suites):
    """`assemblies`, `assembly`, `collection`, `test`; an assembly's `error` is a failed test of no collection."""

    format = "xUnit v2"

    _results = {
        "pass": Weight.NOTHING,
        "skip": Weight.SKIPPED,
        "notrun": Weight.SKIPPED,
        "fail": Weight.FAILED,
    }

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        super().__init__(limits, sink)
        self.starts |= {
            "assemblies": self._assembly,
            "assembly": self._assembly,
            "collection": self._collection,
            "class": self._collection,
            "test": self._case,
            "error": self._error,
            "reason": self._reason,
        }
        self.ends |= {
            **dict.fromkeys(("assemblies", "assembly", "collection", "class"), self._close),
            "test": self._finish,
            "error": self._end_error,
            "reason": self.hush,
        }

    def _assembly(self, attributes: dict[str, str]) -> None:
        self._open(attributes.get("name"), self._declared(attributes), listed=False)

    def _collection(self, attributes: dict[str, str]) -> None:
        self._open(attributes.get("name"), self._declared(attributes))

    def _declared(self, attributes: dict[str, str]) -> Declared:
        get = attributes.get
        skipped = (count(get("skipped")) or 0) + (count(get("not-run")) or 0)
        errors = count(get("errors"))
        tests = count(get("total"))
        # the total of an assembly is of its tests, and an error is none
        tests = None if tests is None else tests + (errors or 0)
        return Declared(tests, count(get("failed")), errors, skipped, duration_ms(get("time")))

    def _case(self, attributes: dict[str, str]) -> None:
        get = attributes.get
        name, class_name = get("name") or get("method"), get("type")
        if name and class_name and name.startswith(class_name + "."):
            name = name[len(class_name) + 1 :]
        draft = Draft(class_name, name, duration_ms(get("time")))
        draft.place = get("id")  # xUnit v3: rows of a theory have the same name if that is long
        draft.weigh(self._results.get(get("result", "").lower(), Weight.ERROR))
        self._begin(draft)

    def _error(self, attributes: dict[str, str]) -> None:
        if self.parent != "errors":
            return
        draft = Draft(attributes.get("type"), attributes.get("name") or "(error)")
        draft.weigh(Weight.ERROR)
        self._begin(draft)

    def _end_error(self) -> None:
        if self.path[-1:] == ["errors"]:
            self._finish()

    def _reason(self, _attributes: dict[str, str]) -> None:
        """In xUnit the text of a reason stands in it, without a `message`."""
        if self._draft:
            self._message = Text(8192)
            self.listen(self._message)
