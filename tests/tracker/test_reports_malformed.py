"""Encodings and malformed reports: invalid characters are replaced, broken and hostile files are refused."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import random
import zlib

import pytest
from report_readers import SmallReads, only_case, read_test_report, read_totals, suite

from models.tracker.reports import byte_stream, json_stream, xml_stream
from models.tracker.reports.base import BadReport, Limits, ReportTooLarge
from models.tracker.reports.detect import read_tests
from models.tracker.reports.perf import Jtl

OK = '<testcase name="a"/>'
WHOLE = suite(OK)


def named(name: str | bytes, declaration: bytes = b"") -> bytes:
    name = name.encode() if isinstance(name, str) else name
    return declaration + b'<testsuite name="s"><testcase name="' + name + b'"/></testsuite>'


def output(text: bytes, declaration: bytes = b"") -> bytes:
    inside = b"<testcase name='a'><system-out>" + text + b"</system-out></testcase>"
    return declaration + b'<testsuite name="s">' + inside + b"</testsuite>"


NAMES = {
    "raw control characters": (named(b"a\x1b[31mb\x00c\x0bd"), "a\ufffd[31mb\ufffdc\ufffdd"),
    "references to them": (named(b"a&#27;b&#0;c&#x1B;d&#xD800;e&#xFFFE;f&#1114112;g"), "a�b�c�d�e�f�g"),
    "references to what is allowed": (named(b"a&#9;b&#xe9;c&#128512;"), "a\tbéc😀"),
    "entities of XML": (named(b"&lt;&gt;&amp;&quot;&apos;"), "<>&\"'"),
    "bytes of no encoding": (named(b"a\xff\xfeb\xc3"), "a\ufffd\ufffdb\ufffd"),
    "noncharacters": (named(b"a\xef\xbf\xbeb\xef\xbf\xbfc"), "a\ufffdb\ufffdc"),
    "an end of CDATA in an attribute": (named(b"boom ]]>"), "boom ]]>"),
    "latin 1": (named(b"caf\xe9", b'<?xml version="1.0" encoding="ISO-8859-1"?>'), "café"),
    "windows": (named(b"\x93\x80\x94", b"<?xml version='1.0' encoding='windows-1252'?>"), "“€”"),
    "shift-jis": (named("日本".encode("shift_jis"), b'<?xml version="1.0" encoding="Shift_JIS"?>'), "日本"),
    "koi8": (named("тест".encode("koi8-r"), b'<?xml version="1.0" encoding="KOI8-R"?>'), "тест"),
    "an encoding of nobody": (named("é", b'<?xml version="1.0" encoding="klingon"?>'), "é"),
    "an encoding that is no text": (named("é", b'<?xml version="1.0" encoding="hex"?>'), "é"),
    "an encoding for names of hosts": (named("é", b'<?xml version="1.0" encoding="punycode"?>'), "é"),
    "utf-8 that says utf-16": (named("é", b'<?xml version="1.0" encoding="UTF-16"?>'), "é"),
    "a BOM": (named("é", b"\xef\xbb\xbf"), "é"),
    "utf-16 with a BOM": (named("é", b"<?xml version='1.0' encoding='utf-16'?>").decode().encode("utf-16"), "é"),
    "utf-16 big endian": (b"\xfe\xff" + named("é").decode().encode("utf-16-be"), "é"),
    "utf-16 without a BOM": (named("é").decode().encode("utf-16-le"), "é"),
    "utf-16 big endian without a BOM": (named("é").decode().encode("utf-16-be"), "é"),
    "utf-32": (named("é").decode().encode("utf-32"), "é"),
    "space before the declaration": (b"\n\n  " + named("é", b'<?xml version="1.0"?>'), "é"),
    "two BOMs": (named("é", b"\xef\xbb\xbf" * 2 + b'<?xml version="1.0" encoding="utf-8"?>'), "é"),
    "a BOM after an empty line": (named("é", b"\r\n\xef\xbb\xbf<?xml version='1.0'?>"), "é"),
    "utf-16 without a BOM after an empty line": (("\n" + named("é").decode()).encode("utf-16-le"), "é"),
    "XML 1.1": (named(b"a&#1;b", b'<?xml version="1.1"?>\xc2\x85'), "a\ufffdb"),
    "a doctype": (named("é", b'<!DOCTYPE testsuite PUBLIC "-//X//EN" "http://127.0.0.1:1/x.dtd">'), "é"),
}


@pytest.mark.parametrize("size", [1 << 30, 1, 7])
@pytest.mark.parametrize("what", NAMES)
def test_name_is_decoded_in_any_encoding(what: str, size: int) -> None:
    data, wanted = NAMES[what]
    assert only_case(read_test_report(data, at_once=size)[1]).name == wanted


OUTPUTS = {
    "an end of CDATA in text": (b"a ]]> b", "a ]]> b"),
    "three brackets": (b"a]]]>b", "a]]]>b"),
    "CDATA": (b"<![CDATA[<a> & &#27; ]] > ]]>", "<a> & &#27; ]] >"),
    "CDATA with control characters": (b"<![CDATA[x\x0by\x00]]>", "x\ufffdy\ufffd"),
    "CDATA in two": (b"<![CDATA[x]]]]><![CDATA[>y &#x0;]]>", "x]]>y &#x0;"),
    "CDATA between texts": (b"a &#0;]]> <![CDATA[&#0;]]> b]]>&#0;", "a �]]> &#0; b]]>�"),
    "CDATA of nothing": (b"<![CDATA[]]>", None),
    "a comment with CDATA in it": (b"a<!-- <![CDATA[ -->b<!-- ]] -->c&amp;", "abc&"),
    "blank": (b" \n ", None),
    "windows line ends": (b"a\r\nb", "a\nb"),
}  # fmt: skip


@pytest.mark.parametrize("size", [1 << 30, 1, 7])
@pytest.mark.parametrize("what", OUTPUTS)
def test_text_with_cdata_and_control_characters_is_decoded(
    what: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, wanted = OUTPUTS[what]
    monkeypatch.setattr(byte_stream, "CHUNK_BYTES", min(size, byte_stream.CHUNK_BYTES))
    monkeypatch.setattr(byte_stream, "HEAD_BYTES", min(size * 32, byte_stream.HEAD_BYTES))
    assert only_case(read_test_report(output(data), at_once=size)[1]).out == wanted


def test_report_may_be_read_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document with all constructs, read in pieces of random sizes, is the same report."""
    texts = "".join(f"a]]>&#0;é<![CDATA[ &#0; ]] {number} ]]>&#x1F600;]" for number in range(50))
    case = f"<testcase name='é&#27;😀'><failure>{texts}</failure></testcase>"
    data = b'<?xml version="1.0" encoding="utf-8"?>\n' + suite(*[case] * 5).encode()
    wanted = read_test_report(data)
    rng = random.Random(7)
    for _ in range(20):
        monkeypatch.setattr(byte_stream, "CHUNK_BYTES", rng.randint(1, 200))
        monkeypatch.setattr(byte_stream, "HEAD_BYTES", rng.randint(100, 1000))
        assert read_test_report(data, at_once=rng.randint(1, 300)) == wanted


BAD = {
    "nothing": (b"", None, "empty"),
    "space": (b" \n\t ", None, "empty"),
    "a page": (b"<!doctype html>\n<html><body>502 Bad Gateway</body></html>", None, "a page of HTML"),
    "text": (b"Tests run: 5, Failures: 0", None, "not XML"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0", None, "not XML"),
    "an archive": (b"PK\x03\x04\0\0", None, "the zip cannot be read"),
    "half a file": (WHOLE[:-5].encode(), 1, "cut short"),
    "half a tag": (b"<testsuite><testcase na", 1, "cut short"),
    "half a declaration": (b"<?xml version='1.0'", 1, "cut short"),
    "a tag that is closed by another": (b"<testsuite>\n<testcase></testsuite>", 2, "mismatched tag"),
    "the same attribute twice": (b'<testsuite><testcase name="a" name="b"/></testsuite>', 1, "duplicate attribute"),
    "words after the end": (f"{WHOLE}\nDone in 3s.".encode(), 2, "after the end"),
    "another document": (f"<?xml version='1.0'?>{WHOLE}<?xml version='1.0'?>{WHOLE}".encode(), 1, "after the end"),
    "an unknown entity": (output(b"a&nbsp;b"), 1, "undefined entity"),
    "a bare ampersand": (output(b"a & b"), 1, "not well-formed"),
    "an entity of its own": (b"<!DOCTYPE a [<!ENTITY b 'c'>]>" + WHOLE.encode(), 1, "declares an entity"),
    "a file as an entity": (b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>' + WHOLE.encode(), 1, "entity"),
    "a parameter entity": (b'<!DOCTYPE a [<!ENTITY % b SYSTEM "http://x/">%b;]>' + WHOLE.encode(), 1, "entity"),
    "coverage": (b'<report name="x"></report>', None, "<report>: JaCoCo is a coverage report, not a test report"),
    "coverage in words": (b"TN:\nSF:a.c\nDA:1,1\nend_of_record\n", None, "LCOV is a coverage report"),
    "JSON of somebody": (b'{"a": 1}', None, "not a supported format"),
}  # fmt: skip


@pytest.mark.parametrize("size", [1 << 30, 7])
@pytest.mark.parametrize("what", BAD)
def test_unreadable_report_is_refused_with_position_and_reason(what: str, size: int) -> None:
    data, line, why = BAD[what]
    with pytest.raises(BadReport) as bad:
        read_test_report(data, at_once=size)
    assert why in str(bad.value)
    assert bad.value.line == line
    assert (f"line {line}, column {bad.value.column}: " in str(bad.value)) == (line is not None)
    assert not isinstance(bad.value, ReportTooLarge)


def test_position_of_an_error_is_that_in_the_original_file() -> None:
    """Characters that were replaced before it do not shift it."""
    data = b'  <?xml version="1.0"\n encoding="utf-8"?>\n<testsuite>\n\x00\x1b&#0;]]>\n  </x></testsuite>'
    with pytest.raises(BadReport) as bad:
        read_test_report(data)
    assert (bad.value.line, bad.value.column) == (5, 5)


GZIPPED = {
    "one member": gzip.compress(WHOLE.encode()),
    "two members": gzip.compress(WHOLE[:20].encode()) + gzip.compress(WHOLE[20:].encode()),
    "zeros after it": gzip.compress(WHOLE.encode()) + b"\0" * 512,
}


@pytest.mark.parametrize("what", GZIPPED)
@pytest.mark.parametrize("size", [1 << 30, 3])
def test_gzip_is_detected_by_content(what: str, size: int) -> None:
    report, _ = read_test_report(GZIPPED[what], at_once=size)
    assert report.totals.tests == 1
    assert report == read_test_report(WHOLE)[0]  # the digest, too, is of the inflated content


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(WHOLE.encode())[:-4],
        gzip.compress(WHOLE.encode())[:15],
        b"\x1f\x8b",
        b"\x1f\x8b" + b"nothing of that kind",
        gzip.compress(WHOLE.encode())[:-8] + b"\0" * 8,
        gzip.compress(WHOLE.encode()) + b"words",
    ],
    ids=range(6),
)
def test_a_broken_gzip_is_refused(data: bytes) -> None:
    with pytest.raises(BadReport, match="gzip"):
        read_test_report(data)


def test_the_digest_is_of_the_inflated_content() -> None:
    digest = read_test_report(WHOLE)[0].digest
    assert digest == hashlib.sha256(WHOLE.encode()).hexdigest()
    assert read_test_report(WHOLE + " ")[0].digest != digest


@pytest.mark.parametrize("packed", [False, True])
def test_a_report_that_is_too_large_when_inflated_has_its_own_error(packed: bool) -> None:
    data = WHOLE.encode() + b" " * 1_000_000
    limits = Limits(inflated=len(data))
    assert read_test_report(gzip.compress(data) if packed else data, limits)[0].totals.tests == 1
    with pytest.raises(ReportTooLarge, match="larger than"):
        read_test_report(gzip.compress(data + b" ") if packed else data + b" ", limits)


def test_gzip_bomb_is_not_inflated_to_its_end() -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = packer.compress(WHOLE.encode()) + b"".join(packer.compress(b" " * 1_000_000) for _ in range(400))
    file = SmallReads(bomb + packer.flush(), 4096)
    with pytest.raises(ReportTooLarge):
        read_tests(file, Limits(inflated=4_000_000), lambda case: None)
    assert file.tell() < len(bomb) / 10


def test_file_is_read_from_its_current_position() -> None:
    for data in (WHOLE.encode(), gzip.compress(WHOLE.encode())):
        file = io.BytesIO(b"before" + data)
        file.seek(6)
        assert read_tests(file, Limits(), lambda case: None).totals.tests == 1


def test_very_long_tag_is_refused() -> None:
    long = named("x" * (xml_stream.MAX_TOKEN_BYTES + 1_000_000))
    with pytest.raises(BadReport, match="longer than"):
        read_test_report(b"<testsuites><testsuite/>" + long)
    assert (
        read_totals(b"<testsuites><testsuite/>" + named("x" * (xml_stream.MAX_TOKEN_BYTES // 2)) + b"</testsuites>")[0]
        == 1
    )


def test_a_very_long_comment_is_refused() -> None:
    comment = b"<!--" + b"-x" * xml_stream.MAX_TOKEN_BYTES + b"-->"
    with pytest.raises(BadReport, match="longer than"):
        read_test_report(b"<testsuite>" + comment + b"</testsuite>")


def test_too_many_different_element_names_are_refused() -> None:
    many = "".join(f"<a{number}/>" for number in range(xml_stream.MAX_XML_NAMES + 10_000))
    with pytest.raises(BadReport, match="different names"):
        read_test_report(f"<testsuite>{many}</testsuite>")


def test_default_values_of_attributes_are_bounded() -> None:
    few = '<!DOCTYPE testcase [<!ATTLIST testcase classname CDATA "c">]>'
    assert only_case(read_test_report(few + OK)[1]).class_name == "c"
    many = "".join(
        f'<!ATTLIST testcase a{number} CDATA "c">' for number in range(xml_stream.MAX_ATTRIBUTE_DEFAULTS + 1)
    )
    for bad in (many, f'<!ATTLIST testcase a CDATA "{"c" * 2000}">'):
        with pytest.raises(BadReport, match="default values"):
            read_test_report(f"<!DOCTYPE testcase [{bad}]>{OK}")


def test_error_of_the_sink_ends_the_reading() -> None:
    def full(_case: object) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        read_tests(io.BytesIO(WHOLE.encode()), Limits(), full)


def test_random_changes_yield_a_report_or_a_bad_report_error() -> None:
    rng = random.Random(11)
    whole = suite(
        '<testcase name="a" time="1"><failure message="&lt;">x<![CDATA[y]]></failure></testcase>' * 3
    ).encode()
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data))
            data[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        with contextlib.suppress(BadReport):
            report, cases = read_test_report(bytes(data))
            assert report.totals.tests <= len(cases)


# Limits of lines and of JSON


@pytest.mark.parametrize(
    ("before", "line", "most"),
    [
        (b"1..1\nok 1 - a\n", b"# ", 1024 * 1024),
        (b'{"Action":"pass","Package":"p","Test":"T"}\n', b"x", 1024 * 1024),
        (b'{"Action":"pass","Package":"p","Test":"T"}\n', b'{"Action":"run","a":[', 1024 * 1024),
    ],
    ids=["tap", "go test", "go test with an event"],
)
def test_a_line_of_a_text_report_is_bounded(before: bytes, line: bytes, most: int) -> None:
    fits = before + line.ljust(most, b"x")
    assert read_totals(fits)[0] == 1
    for ends in (b"", b"\nmore"):
        with pytest.raises(BadReport, match=f"longer than {most} bytes"):
            read_totals(fits + b"x" + ends)


def test_a_line_of_csv_is_bounded() -> None:
    head = b"timeStamp,elapsed,label\n1,2,"
    samples = Jtl()
    samples.read([head + b"x" * 65_531 + b"\n1,2,b\n"])
    with pytest.raises(BadReport, match="longer than 65536 bytes"):
        Jtl().read([head + b"x" * 65_533 + b"\n1,2,b\n"])


def test_the_values_of_a_json_report_are_bounded() -> None:
    limits = Limits()
    assert len(list(json_stream.json_values([b'{"a":[1,{"b":2}]}'], limits, 5))) == 6
    with pytest.raises(BadReport, match="more than 5 values"):
        list(json_stream.json_values([b'{"a":[1,{"b":2},3]}'], limits, 5))
