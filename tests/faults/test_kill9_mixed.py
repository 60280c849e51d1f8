"""The server is killed at random moments of a mixed load: nothing acknowledged is lost, nothing is duplicated.

`PILOTHOUSE_MIXED_ROUNDS` sets the number of rounds, `PILOTHOUSE_SEED` the seed. A failure names its round;
`PILOTHOUSE_FIRST_ROUND` begins with that round.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

from chart_servers import web_server
from cluster import Cluster
from conftest import Serve, Server, children_of, session_leaders, tags_by_pid, wait_for
from mixed_load import API, BROKEN, NAMES, RELEASES, Ledger, MixedLoad, Shard
from small_charts import FULL, HELMS, KEY, helm_path, send_json
from uploads import query_store

ROUNDS = int(os.environ.get("PILOTHOUSE_MIXED_ROUNDS", "3"))
FIRST = int(os.environ.get("PILOTHOUSE_FIRST_ROUND", "0"))
SEED = int(os.environ.get("PILOTHOUSE_SEED", "1"))
HELM = HELMS[(SEED + 1) % len(HELMS)]
STORES = ("pilothouse", "tracker", "charts")
MAX_ROUND_SECONDS = 2.5
"""helm takes about one second."""


def test_killed_server_loses_nothing_acknowledged_in_a_mixed_load(
    serve: Serve, cluster: Cluster, tmp_path: Path
) -> None:
    temp = tmp_path / "temp"
    processes: dict[str, Any] = {name: {"command": "sleep 1000", "order": int(name[1:]) % 3} for name in NAMES}
    processes[BROKEN] = {"command": "/nonexistent/program"}
    processes[NAMES[0]]["auto-start"] = True
    processes[NAMES[1]]["restart"] = "always"
    with web_server() as repository:
        svc = {
            **FULL,
            "security": {**FULL["security"], "allowed-hosts": [repository.host_port]},
            "helm": {"binary": helm_path(HELM), "max-concurrent": 3},
            "rest": {"temp-dir": str(temp)},
            "kube": {"kubeconfig": str(cluster.kubeconfig)},
        }
        server = serve(processes, svc=svc)
        load = MixedLoad(server, repository, cluster.namespace())
        load.publish()
        assert send_json(server, "POST", f"{API}/repos", {"name": "lab", "url": repository.url}).status == 201
        for number in range(FIRST, FIRST + ROUNDS):
            chance = random.Random(SEED * 10_000 + number)
            result = f"round {number} of seed {SEED}; the log is {server.log}"
            print(result)  # pytest shows it if the round fails
            load.run(chance)
            time.sleep(chance.uniform(0, MAX_ROUND_SECONDS))  # the server is killed at a random moment
            server.kill()
            load.join()
            server.start()
            check(load, temp, result)
        finish(load, temp)


def check(load: MixedLoad, temp: Path, result: str) -> None:
    server, ledger = load.server, load.ledger
    assert ledger.faults == [], (result, ledger.faults)
    check_processes(server, ledger, result)
    check_uploads(server, ledger, result)
    wait_for(lambda: not helm_pids(server.data), 30, f"no helm process left in {result}")
    check_releases(load, result)
    check_repositories(load, result)
    wait_for(lambda: unexpected_files(server, temp) == [], 60, f"no unexpected file in {result}")
    check_stores(server, result)
    assert "Traceback" not in server.log.read_text(), result


# Supervision


def check_processes(server: Server, ledger: Ledger, result: str) -> None:
    for id, event in ledger.events.items():
        assert server.get(f"{API}/events/{id}").json == event, result
    wait_for(lambda: set(children_of(server.data)) == listed_pids(server), 60, f"no unknown process in {result}")
    running = session_leaders(server.data)
    assert max(running.values(), default=0) <= 1, (result, running)
    listing = {one["name"]: one["status"] for one in server.get(f"{API}/processes").json}
    assert set(running) <= {name for name, status in listing.items() if status in ("running", "stopping")}, result
    for verb, name, answer in ledger.calls:
        match = re.fullmatch(r".* has been (?:re)?started \(pid (\d+).*\)", answer.json.get("message", ""))
        if match and verb in ("start", "restart"):
            assert int(match[1]) in running_pids(server, name), (result, verb, name, answer)
    newest = server.get(f"{API}/events?size=1").json["content"][0]["id"]
    assert newest == server.get(f"{API}/events/count").json["totalEvents"], result  # no id is missing or used twice


def running_pids(server: Server, name: str) -> set[int]:
    """The pids that a process had, by the newest hundred events of its history."""
    path = f"{API}/events/by-process/{name}?size=100&sortBy=id&sortDirection=desc"
    return {event["pid"] for event in server.get(path).json["content"] if event["newStatus"] == "running"}


def listed_pids(server: Server) -> set[int]:
    return {one["pid"] for one in server.get(f"{API}/processes").json if one["pid"] is not None}


# The tracker


def check_uploads(server: Server, ledger: Ledger, result: str) -> None:
    """Each acknowledged shard is complete and in one run; any other is complete or missing."""
    found = runs_by_mark(server)
    for shard in ledger.shards:
        runs = found.get(shard.mark, [])
        if shard.key is None:
            assert len(set(shard.runs)) == len(shard.runs), (result, shard)
            assert len(runs) <= shard.tried, (result, shard)
            assert set(shard.runs) <= {run for run, _ in runs}, (result, shard, runs)
        else:
            assert len(runs) <= 1, (result, shard, runs)
            assert {run for run, _ in runs} >= set(shard.runs), (result, shard, runs)
        assert all(count == shard.count for _, count in runs), (result, shard, runs)
    totals = (
        "SELECT id, tests, passed + failed + errors + skipped, (SELECT count(*) FROM result WHERE run_id = run.id),"
    )
    totals += " uploads, (SELECT count(*) FROM report WHERE run_id = run.id AND kind = 'junit') FROM run"
    for id, tests, parts, results, uploads, reports in query_store(server, totals):
        assert tests == parts == results, (result, id)
        assert uploads >= reports > 0, (result, id)
    for event in ledger.streamed_runs.values():
        run = query_store(server, "SELECT tests FROM run WHERE id = ?", event["runId"])
        assert run, (result, event)
        assert run[0][0] >= event["totalTests"], (result, event)
    ids = [id for (id,) in query_store(server, "SELECT id FROM run_event")]
    assert set(ledger.streamed_runs) <= set(ids), result


def runs_by_mark(server: Server) -> dict[str, list[tuple[int, int]]]:
    """For the mark of each shard: the runs with its tests, and the number of these tests."""
    query = (
        "SELECT substr(t.name, 1, instr(t.name, '-') - 1), r.run_id, count(*) FROM result r"
        " JOIN test t ON t.id = r.test_id GROUP BY 1, 2"
    )
    found: dict[str, list[tuple[int, int]]] = {}
    for mark, run, count in query_store(server, query):
        found.setdefault(mark, []).append((run, count))
    return found


# Charts


def helm_pids(data: Path) -> set[int]:
    """Without the workers, which are kept warm for a while."""
    tags = tags_by_pid()
    return {pid for pid in children_of(data, with_helm=True) if tags.get(pid, "").endswith(":\x01helm")}


def check_releases(load: MixedLoad, result: str) -> None:
    server, ledger, query = load.server, load.ledger, f"?namespace={load.namespace}"
    for name in RELEASES:

        def status_of_release(name: str = name) -> str | None:
            answer = server.get(f"{API}/releases/{name}{query}", **KEY)
            assert answer.status in (200, 404), (result, name, answer)
            return answer.json["info"]["status"] if answer.status == 200 else None

        # the server marks an interrupted change as failed once its helm has ended
        wait_for(lambda: not (status_of_release() or "").startswith("pending"), 30, f"no change pending in {result}")
        status = status_of_release()
        if name in ledger.releases:
            colour = ledger.releases[name]
            assert (status == "deployed") == (colour is not None), (result, name, status, colour)
            values = server.get(f"{API}/releases/{name}/values{query}", **KEY)
            assert colour in (None, "*") or f"colour: {colour}\n" in values.text, (result, name, values)
        elif status == "uninstalling":
            assert send_json(server, "DELETE", f"{API}/releases/{name}{query}").status == 204, (result, name)
        elif status is not None and status != "deployed":
            again = {"chartRef": "lab/tint:0.1.0", "install": True}
            answer = send_json(server, "PUT", f"{API}/releases/{name}{query}", again)
            assert answer.status == 200, (result, name, status, answer)


def check_repositories(load: MixedLoad, result: str) -> None:
    server, ledger = load.server, load.ledger
    existing = {one["name"] for one in server.get(f"{API}/repos").json}
    assert "lab" in existing, result
    for name, exists in ledger.repositories.items():
        assert (name in existing) == exists, (result, name, existing)
    if ledger.versions:
        newest = server.get(f"{API}/repos/lab/charts/more/versions").json[0]
        assert int(newest["chartVersion"].rpartition(".")[2]) >= ledger.versions - 1, (result, newest, ledger.versions)


# Files and stores


def unexpected_files(server: Server, temp: Path) -> list[str] | None:
    """Files that should not exist, and files with a wrong mode; None where a folder is swept meanwhile."""
    try:
        return _unexpected_files(server, temp)
    except FileNotFoundError:
        return None


def _unexpected_files(server: Server, temp: Path) -> list[str]:
    names = {f"{name}.db{end}" for name in STORES for end in ("", "-wal", "-shm")}
    allowed = names | {"lock", "admin-password", "incoming", "charts", "control.sock", "endpoint.json", "reserve"}
    found = [str(path) for path in server.data.iterdir() if path.name not in allowed]
    found += map(str, (server.data / "incoming").iterdir())
    for path in (server.data, *server.data.iterdir(), server.data / "charts" / "helm"):
        expected = 0o700 if path.is_dir() else 0o600
        with contextlib.suppress(FileNotFoundError):
            if stat.S_IMODE(path.stat().st_mode) != expected:
                found.append(f"{path} has mode {stat.S_IMODE(path.stat().st_mode):o}")
    folders = list(temp.iterdir())
    found += [str(path) for path in folders[1:]]
    return found + [str(path) for folder in folders for path in folder.iterdir() if path.name != ".lock"]


def check_stores(server: Server, result: str) -> None:
    for name in STORES:
        with contextlib.closing(sqlite3.connect(server.data / f"{name}.db", timeout=30)) as store:
            assert store.execute("PRAGMA integrity_check").fetchall() == [("ok",)], (result, name)
            assert store.execute("PRAGMA foreign_key_check").fetchall() == [], (result, name)


def finish(load: MixedLoad, temp: Path) -> None:
    """Repeats unacknowledged uploads, then checks exact totals and a clean stop."""
    server, ledger = load.server, load.ledger
    for shard in ledger.shards:
        if shard.key is not None and not shard.runs:
            shard.deliver(server)
    found = runs_by_mark(server)
    by_key: dict[str, list[Shard]] = {}
    for shard in ledger.shards:
        if shard.key is not None:
            by_key.setdefault(shard.key, []).append(shard)
    for key, shards in by_key.items():
        assert len({run for shard in shards for run in shard.runs}) == 1, (key, shards)
        tests = query_store(server, "SELECT tests FROM run WHERE id = ?", shards[0].runs[0])
        assert tests == [(sum(shard.count for shard in shards),)], (key, shards)
    assert all(len(found[shard.mark]) == 1 for shard in ledger.shards if shard.key is not None)
    assert ledger.done > 3 * ROUNDS
    assert server.post(f"{API}/processes/group/stop").status in (200, 404)
    assert server.stop() == 0
    assert children_of(server.data, with_helm=True) == []
    assert list(temp.iterdir()) == []
