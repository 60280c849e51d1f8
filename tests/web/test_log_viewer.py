"""The log viewer in a browser: many lines, few nodes; levels, colours, search; toasts; one connection for many tabs."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from browser_pages import Browser, axe_findings, url_of
from conftest import IS_PROOF, Server, wait_for
from http_checks import running_server

LINES = [
    "plain before any level",
    "2026-01-01 INFO started",
    "\x1b[1;31mred\x1b[0m \x1b[38;5;46mgreen\x1b[0m \x1b]0;title\x07 <b>",
    "level=error msg=broken",
    "  at shop.py line 3",
    '{"level": "warn", "msg": "slow"}',
    "<3>from the kernel",
    "DEBUG done",
]
FLOOD_SECONDS = 60 if IS_PROOF else 4
LINES_PER_SECOND = 2000
FLOOD = f"""
import sys, time
begun, number = time.monotonic(), 0
while number < {LINES_PER_SECOND} * int(sys.argv[1]):
    due = int((time.monotonic() - begun) * {LINES_PER_SECOND})
    sys.stdout.write("".join(f"{{n}} of the flood, with a text of the usual length\\n" for n in range(number, due)))
    sys.stdout.flush()
    number = max(due, number)
    time.sleep(0.02)
"""


class Relay:
    """Forwards connections to a server; `cut` closes all of them."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._target = port
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        begin = asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(begin, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, other}
        await asyncio.gather(self._copy(reader, other), self._copy(other_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        for writer in list(self._writers):
            self._loop.call_soon_threadsafe(writer.transport.abort)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("viewer")
    (folder / "words.log").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "many.log").write_text("".join(f"line {number}\n" for number in range(3000)))
    (folder / "early.log").write_text("".join(f"line {number}\n" for number in range(1782)))
    (folder / "plain.log.2").write_text("oldest\n")
    (folder / "plain.log.1").write_text("older\n")
    plain = [*(f"ünder {number}" for number in range(3000)), "x" * 60, "last (one)"]
    (folder / "plain.log").write_text("".join(f"{line}\n" for line in plain))
    processes: dict[str, dict[str, Any]] = {
        name: {"command": "sleep 1000", "stdout-logfile": str(folder / f"{name}.log")}
        for name in ("words", "many", "plain", "early")
    }
    processes["brief"] = {
        "command": ["sh", "-c", "echo begun; printf 'no end'; exit 3"],
        "stdout-logfile": str(folder / "brief.log"),
    }
    flood = {"command": [sys.executable, "-c", FLOOD, str(FLOOD_SECONDS)], "log-max-bytes": "60K", "log-backups": 999}
    processes["flood"] = {**flood, "stdout-logfile": str(folder / "flood.log")}
    with running_server(folder, processes) as one:
        yield one


def shown(page: Any) -> list[str]:
    return [line.strip() for line in page.locator(".log .line").all_inner_texts()]


def test_colours_are_classes_and_other_sequences_are_removed(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        page.goto("/processes/words")
        page.locator("#log-count", has_text="8 lines").wait_for()
        assert page.locator(".ansi-1.ansi-bold").inner_text() == "red"
        assert page.locator(".ansi-46").inner_text() == "green"
        assert "red green  <b>" in page.locator(".log .line").nth(2).inner_text()
        assert axe_findings(page) == []


COLOURS = """async () => {
    const script = document.querySelector("script[src*='/log.js']").src;
    const { parts } = await import(script.replace("/log.js", "/ansi.js"));
    const log = document.querySelector(".log");
    const luminance = (text) => {
        const linear = text.match(/[0-9.]+/g).slice(0, 3).map(Number).map((value) => value / 255)
            .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    };
    return Array.from({ length: 256 }, (_, index) => {
        const line = document.createElement("span");
        [[line.textContent, line.className]] = parts(`\\x1b[38;5;${index}mtext`);
        log.append(line);
        const colour = getComputedStyle(line).color;
        const [ground, ink] = [luminance(getComputedStyle(log).backgroundColor), luminance(colour)];
        line.remove();
        return [(Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05), colour];
    });
}"""
"""The contrast of each of the 256 colours with the ground of the log, and the colour itself."""
CLASSES = """async (texts) => {
    const script = document.querySelector("script[src*='/log.js']").src;
    const { parts } = await import(script.replace("/log.js", "/ansi.js"));
    return texts.map((text) => parts(`\\x1b[${text}mx`)[0][1]);
}"""


def test_true_colours_are_rounded_to_256_which_all_have_contrast(server: Server, chromium: Browser) -> None:
    classes = {
        "38;2;255;135;0": "ansi-208",
        "38;2;250;140;8": "ansi-208",
        "38:2::255:135:0": "ansi-208",
        "38:2:255:135:0": "ansi-208",
        "38:5:208": "ansi-208",
        "38;2;129;127;128": "ansi-244",
        "38;2;1;1;1": "ansi-16",
        "38;2;254;254;254": "ansi-231",
        "38;5;9": "ansi-9",
        "38;5;300": "",
        "38;5": "",
        "48;5;3;31": "ansi-1",
        "48;2;1;2;3;1": "ansi-bold",
        "4:3;2": "ansi-underline ansi-dim",
    }
    with chromium.page(url_of(server)) as page:
        page.goto("/processes/words")
        assert page.evaluate(CLASSES, list(classes)) == list(classes.values())
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            contrasts, colours = zip(*page.evaluate(COLOURS), strict=True)
            assert min(contrasts) >= 4.5, theme
            assert len(set(colours)) > 200, theme


@pytest.mark.parametrize(
    ("level", "lines"),
    [("0", [3, 4, 6]), ("1", [3, 4, 5, 6]), ("2", [1, 2, 3, 4, 5, 6])],
)
def test_lines_are_filtered_by_level(server: Server, chromium: Browser, level: str, lines: list[int]) -> None:
    with chromium.page(url_of(server)) as page:
        page.goto("/processes/words")
        page.locator("#log-count", has_text="8 lines").wait_for()
        page.locator("#log-level").select_option(level)
        page.locator("#log-count", has_text=f"{len(lines)} of 8 lines").wait_for()
        assert page.locator(".log .line").count() == len(lines)


def test_matches_are_highlighted_and_visited(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        page.goto("/processes/many")
        page.locator("#log-count", has_text="500 lines").wait_for()
        page.get_by_label("Search").fill("LINE 27")
        page.locator("#log-count", has_text="111 of 3,000 lines").wait_for()
        assert page.locator(".log mark").first.inner_text() == "line 27"
        page.get_by_role("button", name="Next").click()
        assert page.locator(".log .current").inner_text() == "line 27"
        page.get_by_role("button", name="Previous").click()
        assert page.locator(".log .current").inner_text() == "line 2799"


def test_earlier_lines_load_at_the_top_until_the_first(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        page.goto("/processes/early")
        page.locator("#log-count", has_text="500 lines, earlier ones load at the top").wait_for()
        for count in ("1,500 lines", "1,782 lines"):
            page.locator(".log").evaluate("box => { box.scrollTop = 0; }")
            page.locator("#log-count", has_text=count).wait_for()
        assert page.locator("#log-count").inner_text() == "1,782 lines"
        page.locator(".log").evaluate("box => { box.scrollTop = 0; }")
        page.locator(".log .line", has_text=re.compile(r"^line 0$")).wait_for()
        page.evaluate("navigator.clipboard.writeText = (text) => { window.copied = text; }")
        page.get_by_role("button", name="Copy", exact=True).click()
        assert page.evaluate("copied").splitlines() == [f"line {number}" for number in range(1782)]


def test_a_line_that_the_server_found_is_shown_among_its_neighbours(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        page.goto("/processes/early")
        page.locator("#log-count", has_text="500 lines").wait_for()
        page.get_by_label("Search").fill("line 100")
        page.locator("#log-count", has_text="11 of 1,782 lines").wait_for()
        page.get_by_role("button", name="Next").click()
        assert page.locator(".log .current").inner_text() == "line 100"
        page.get_by_label("Search").fill("")
        page.locator(".log .line", has_text=re.compile(r"^line 101$")).wait_for()
        assert page.locator(".log .current").inner_text() == "line 100"


def test_many_lines_need_few_nodes_and_the_buffer_is_bounded(server: Server, chromium: Browser) -> None:
    log = server.folder / "many.log"
    with chromium.page(url_of(server)) as page:
        page.goto("/processes/many")
        page.locator("#log-count", has_text="lines").wait_for()
        for start in range(3000, 63_000, 20_000):  # each write is less than one chunk of the stream
            with log.open("a") as file:
                file.write("".join(f"line {number}\n" for number in range(start, start + 20_000)))
            page.locator(".log .line", has_text=f"line {start + 19_999}").wait_for()
            assert page.locator(".log .line").count() <= 200
        page.locator("#log-count", has_text="50,000 lines").wait_for()
        assert page.evaluate("document.querySelectorAll('*').length") < 2500


def test_scrolled_up_the_view_stays_and_counts_the_new_lines(server: Server, chromium: Browser) -> None:
    log = server.folder / "many.log"
    with chromium.page(url_of(server)) as page:
        page.goto("/processes/many")
        page.locator("#log-count", has_text="500 lines").wait_for()
        at_end = page.locator(".log .line").first.inner_text()
        page.locator(".log").evaluate("box => { box.scrollTop = 3600; }")
        wait_for(lambda: page.locator(".log .line").first.inner_text() != at_end)
        assert page.locator(".log").evaluate("box => box.scrollTop") == 3600
        before = page.locator(".log .line").first.inner_text()
        with log.open("a") as file:
            file.write("one more\nand another\n")
        page.get_by_role("button", name="2 new lines").wait_for()
        assert page.locator(".log .line").first.inner_text() == before
        page.get_by_role("button", name="2 new lines").click()
        page.locator(".log .line", has_text="and another").wait_for()


def test_starts_and_exits_are_shown_at_their_place(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        page.goto("/processes/brief")
        page.locator("#log-count", has_text="no lines yet").wait_for()
        for _ in range(2):
            server.do("start", "brief")
            wait_for(lambda: server.info("brief")["status"] == "failed")
        page.locator(".log .line").nth(7).wait_for()
        once = ["started, pid N", "begun", "no end", "exited, code 3"]
        for _ in range(2):
            assert [re.sub(r"\d{3,}", "N", line) for line in shown(page)] == 2 * once
            assert page.locator("#log-count").inner_text() == "4 lines"
            assert axe_findings(page) == []
            page.reload()
            page.locator(".log .line").nth(7).wait_for()


def test_a_link_opens_the_log_at_its_line(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        text = (server.folder / "plain.log").read_bytes()
        page.goto(f"/processes/plain#at={text.index('ünder 77'.encode())}")
        page.locator(".log .current", has_text="ünder 77").wait_for()
        assert page.get_by_role("button", name="Link to line").is_enabled()
        line = page.locator(".log .line", has_text="ünder 85")
        line.click()
        page.get_by_role("button", name="Link to line").click()
        page.locator(".toast", has_text="the link is in the address bar").wait_for()
        page.wait_for_url(f"**?log=stdout#at={text.index('ünder 85'.encode())}")
        page.evaluate(f"location.hash = '#at={len(text) - 3}'")
        page.locator(".log .current", has_text="last (one)").wait_for()


def test_a_search_by_text_or_a_regular_expression_with_a_time_limit(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        page.goto("/processes/plain")
        search, count = page.get_by_label("Search"), page.locator("#log-count")
        page.locator("#log-count", has_text="500 lines").wait_for()
        search.fill("(ONE)")
        page.locator("#log-count", has_text="1 of 3,002 lines").wait_for()
        assert page.locator(".log mark").all_inner_texts() == ["(one)"]
        page.get_by_label("Regular expression").check()
        search.fill("r 26[0-4]\\d$|^last")
        page.locator("#log-count", has_text="51 of 3,002 lines").wait_for()
        assert page.locator(".log mark").last.inner_text() == "last"
        search.fill("(")
        page.locator("#log-count", has_text="Invalid regular expression").wait_for()
        search.fill("(x+x+)+y")
        page.locator("#log-count", has_text="takes longer than 1 s").wait_for()
        search.fill("last")
        page.locator("#log-count", has_text="1 of 3,002 lines").wait_for()
        assert count.get_attribute("aria-live") == "polite"


def test_the_time_limit_of_a_search_begins_with_the_search(server: Server, chromium: Browser) -> None:
    """A busy machine takes longer to start the worker."""
    held: list[Any] = []

    def is_held() -> bool:
        page.wait_for_timeout(5)
        return bool(held)

    with chromium.page(url_of(server)) as page:
        page.clock.install()
        page.route("**/log_filter.js", lambda route: held.append(route))
        page.goto("/processes/plain")
        page.locator("#log-count", has_text="500 lines").wait_for()
        page.get_by_label("Regular expression").check()
        page.get_by_label("Search").fill("^last")
        wait_for(is_held, about="the script of the worker to be requested")
        page.clock.fast_forward(5000)
        held[0].continue_()
        page.locator("#log-count", has_text="1 of 3,002 lines").wait_for()


def test_a_download_has_the_whole_file_and_its_backups(server: Server) -> None:
    path = "/api/v1/processes/logs/plain?download=true"
    file = server.get(path)
    assert file.body == (server.folder / "plain.log").read_bytes()
    assert file.headers["Content-Disposition"] == 'attachment; filename="plain.log"'
    assert server.get(f"{path}&backups=true").body == b"oldest\nolder\n" + file.body
    assert server.get("/api/v1/processes/logs/plain?download=yes").status == 400


def test_a_flood_is_shown_without_gaps_across_rotations_and_reconnects(server: Server, chromium: Browser) -> None:
    relay = Relay(server.port)
    try:
        with chromium.page(f"http://127.0.0.1:{relay.port}", allow=("ERR_",)) as page:
            page.add_init_script("delete window.SharedWorker")
            page.goto("/processes/flood")
            page.locator("#log-count", has_text="no lines yet").wait_for()
            server.do("start", "flood")
            page.locator("#log-count", has_text=re.compile(r"^\d,\d{3} lines")).wait_for()
            relay.cut()
            wait_for(lambda: server.info("flood")["status"] == "finished", FLOOD_SECONDS + 60)
            page.locator(".log .line", has_text="exited, code 0").wait_for()
            lines = server.get("/api/v1/processes/logs/flood?download=true&backups=true").text.splitlines()
            assert len(list(server.folder.glob("flood.log.*"))) > 1
            page.evaluate("navigator.clipboard.writeText = (text) => { window.copied = text; }")
            page.get_by_role("button", name="Copy", exact=True).click()
            copied = [line for line in page.evaluate("copied").splitlines() if "flood" in line]
            assert copied == lines[-len(copied) :]
            assert len(copied) == min(len(lines), 50_000 - page.locator(".note-line").count())
            assert page.evaluate("document.querySelectorAll('*').length") < 2500
    finally:
        relay.close()


def test_twelve_tabs_with_logs_hold_one_connection(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        tabs = [page, *(page.context.new_page() for _ in range(11))]
        for tab in tabs:
            tab.goto("/processes/many")
            tab.locator("#log-count", has_text="lines").wait_for()
        others = [page.context.new_page() for _ in range(6)]
        for tab in others:
            tab.goto("/processes")
            tab.locator("#live[data-is=on]").wait_for()
        # The server may still hold the stream of a page that an earlier test has closed.
        wait_for(lambda: 'kind="live"} 1.0\n' in server.get("/metrics").text, about="one stream")


def test_an_action_is_confirmed_by_a_toast_that_closes(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        page.clock.install()
        page.goto("/processes/words")
        page.get_by_role("button", name="Start", exact=True).click()
        done = page.locator(".toast", has_text="words started, pid ")
        done.wait_for()
        page.clock.fast_forward(7000)
        done.wait_for(state="detached")
        page.get_by_role("button", name="Stop", exact=True).click()
        page.locator(".toast", has_text="words stopped").wait_for()


def test_typing_filters_the_table_without_a_history_entry(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        page.goto("/processes")
        length = page.evaluate("history.length")
        page.get_by_label("Name or description contains").press_sequentially("man")
        page.locator("tr[data-key=words]").wait_for(state="detached")
        page.wait_for_url("**/processes?q=man")  # the filter of the first letter hides that row as well
        assert page.evaluate("history.length") == length
        assert page.locator("tr[data-key=many]").is_visible()


def test_errors_of_the_connection_are_cleared_when_the_server_is_back(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), allow=("503", "ERR_", "Failed to load")) as page:
        page.goto("/processes")
        page.locator("#live[data-is=on]").wait_for()
        page.route("**/processes**", lambda route: route.abort())
        page.get_by_role("button", name="Start words").or_(page.get_by_role("button", name="Stop words")).click()
        page.locator(".toast.bad", has_text="cannot be reached").wait_for()
        page.get_by_text("disconnected since").wait_for()
        page.unroute("**/processes**")
        page.locator(".toast.bad").wait_for(state="detached")
        page.get_by_text("disconnected since").wait_for(state="hidden")


@pytest.mark.parametrize("path", ["/processes", "/v3/api-docs", "/v3/api-docs.yaml"])
def test_text_is_compressed_if_the_client_accepts_it(server: Server, path: str) -> None:
    plain = server.get(path)
    packed = server.get(path, Accept_Encoding="gzip, br")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["Vary"]
    assert "Accept-Encoding" in plain.headers["Vary"]
    assert len(packed.body) == int(packed.headers["Content-Length"]) < len(plain.body)
    assert len(gzip.decompress(packed.body)) == pytest.approx(len(plain.body), rel=0.05)
    assert "Content-Encoding" not in server.get(path, Accept_Encoding="gzip;q=0").headers


def test_small_responses_and_streams_are_not_compressed(server: Server) -> None:
    assert "Content-Encoding" not in server.get("/healthz", Accept_Encoding="gzip").headers
    stream = server.stream("/api/v1/live", Accept_Encoding="gzip")
    assert stream.next()["event"] == "hello"
    stream.close()


def test_static_files_are_immutable_under_their_digest(server: Server) -> None:
    html = server.get("/").text
    script = html.partition('type="module"')[2].partition('src="')[2].partition('"')[0]
    found = server.get(script, Accept_Encoding="gzip")
    assert "immutable" in found.headers["Cache-Control"]
    assert found.headers["Content-Encoding"] == "gzip"
    assert server.get(script.rpartition("/")[0] + "/live.js").status == 200
    assert server.get("/static/app.js").headers["Cache-Control"] == "no-cache"
    assert server.get("/static/0123456789abcdef/app.js").headers["Cache-Control"] == "no-cache"
    assert server.get(script, If_None_Match=found.headers["Etag"], Accept_Encoding="gzip").status == 304
