"""The peers, configured as their documentation recommends, with their fastest settings."""

import http.client
import json
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.candidates import CACHE, Candidate, Setup
from benchmarks.httpload import Answers, Target, summary


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Supervisord(Candidate):
    name = "supervisord"
    notes = ("over its Unix socket: over TCP one keep-alive connection can meet a 40 ms delayed-ACK pause",)
    home = CACHE / "supervisor"

    @classmethod
    def most_runs(cls, children: int) -> int:
        return 2

    @classmethod
    def missing(cls) -> str:
        return "" if (cls.home / "bin/supervisord").exists() else "no venv with it in the cache"

    @classmethod
    def install(cls) -> None:
        """Installs into a separate environment."""
        subprocess.run([sys.executable, "-m", "venv", str(cls.home)], check=True)
        subprocess.run([str(cls.home / "bin/pip"), "install", "-q", "supervisor"], check=True)

    @classmethod
    def version(cls) -> str:
        return _output(cls.home / "bin/supervisord", "--version")

    def launch(self) -> None:
        here = self.setup.directory
        (here / "supervisord.conf").write_text(
            f"[unix_http_server]\nfile={here}/s\n"
            f"[supervisord]\nlogfile=/dev/null\nlogfile_maxbytes=0\npidfile={here}/pid\nminfds={_file_limit()}\n"
            f"[supervisorctl]\nserverurl=unix://{here}/s\n"
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface\n"
            f"[program:child]\ncommand={' '.join(self.setup.command)}\nnumprocs={self.setup.children}\n"
            "process_name=c%(process_num)04d\nautostart=true\nautorestart=true\nstartsecs=0\n"
            "stdout_logfile=NONE\nstderr_logfile=NONE\n"
        )
        self.spawn(self.home / "bin/supervisord", "-n", "-c", here / "supervisord.conf")

    def _body(self, method: str, *names: str) -> str:
        params = "".join(f"<param><value><string>{name}</string></value></param>" for name in names)
        return (
            f"<?xml version='1.0'?><methodCall><methodName>supervisor.{method}</methodName>"
            f"<params>{params}</params></methodCall>"
        )

    def _call(self, method: str) -> None:
        connection = _UnixConnection(f"{self.setup.directory}/s")
        try:
            connection.request("POST", "/RPC2", self._body(method), {"Content-Type": "text/xml"})
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200 or b"<fault>" in body:
                raise RuntimeError(f"{method}: {answer.status} {body[:200]!r}")
        finally:
            connection.close()

    def start_all(self) -> None:
        self._call("startAllProcesses")

    def stop_all(self) -> None:
        self._call("stopAllProcesses")

    def _target(self, method: str, *names: str) -> Target:
        body = self._body(method, *names)
        head = f"POST /RPC2 HTTP/1.1\r\nHost: x\r\nContent-Type: text/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        return Target(f"{self.setup.directory}/s", head + body)

    def target_all(self) -> Target:
        return self._target("getAllProcessInfo")

    def target_one(self) -> Target:
        return self._target("getProcessInfo", "child:c0000")


class Runit(Candidate):
    name = "runit"
    rest = 1.05  # runsv waits when a service lived for less than a second
    notes = (
        "one runsv process for each child, all of them counted",
        "no server to ask: its status of all is one `sv status` of all, a program that reads files",
    )

    @classmethod
    def missing(cls) -> str:
        return "" if shutil.which("runsvdir") and shutil.which("sv") else "no Debian package runit"

    @classmethod
    def install(cls) -> None:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "runit"], check=True)

    @classmethod
    def version(cls) -> str:
        return _output("dpkg-query", "-W", "-f=runit ${Version}", "runit") if shutil.which("dpkg-query") else "runit"

    @property
    def services(self) -> list[str]:
        return [str(self.setup.directory / "sv" / name) for name in self.setup.names]

    def launch(self) -> None:
        script = f"#!{' '.join(self.setup.command)}\n"  # the kernel passes the FIFO on: no shell comes between
        for service in self.services:
            Path(service).mkdir(parents=True)
            run = Path(service) / "run"
            run.write_text(script)
            run.chmod(0o755)
        self.spawn("runsvdir", self.setup.directory / "sv")

    def _sv(self, verb: str) -> None:
        subprocess.run(["sv", verb, *self.services], check=True, stdout=subprocess.DEVNULL, timeout=60)

    def start_all(self) -> None:
        self._sv("up")

    def stop_all(self) -> None:
        self._sv("down")

    def status_load(self, clients: int, seconds: float) -> Answers | None:
        if clients > 1:
            return None
        latencies = []
        begin = now = time.perf_counter()
        while now - begin < seconds:
            self._sv("status")
            latencies.append(time.perf_counter() - now)
            now = time.perf_counter()
        return summary(latencies, now - begin, 0)

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGHUP)  # with TERM it would leave its runsv processes behind
            self.process.wait(15)
        super().close()


PM2_CLIENT = """
const pm2 = require(process.argv[1]), clock = () => Number(process.hrtime.bigint()) / 1e9;
const ask = (verb, ...words) => new Promise((yes, no) =>
  pm2[verb](...words, (error, list) => error ? no(error) : yes(list)));
async function load(clients, seconds) {
  const begin = clock(), latencies = [];
  await Promise.all(Array.from({length: clients}, async () => {
    do {
      const begin = clock();
      await ask('list');
      latencies.push(clock() - begin);
    } while (clock() - begin < seconds);
  }));
  return {latencies, seconds: clock() - begin};
}
async function answer(verb, ...words) {
  try { return verb === 'load' ? await load(...words) : (await ask(verb, ...words), {}); }
  catch (error) { return {error: String(error)}; }
}
pm2.connect(() => require('readline').createInterface({input: process.stdin}).on('line',
  async line => console.log('bench' + JSON.stringify(await answer(...JSON.parse(line))))));
"""


class Pm2(Candidate):
    name = "pm2"
    notes = (
        "queried by its own client in node over its RPC socket, including decoding; the 8 clients share that socket",
    )
    home = CACHE / "pm2"
    package = home / "node_modules/pm2"

    @classmethod
    def most_runs(cls, children: int) -> int:
        return 1 if children > 50 else 2

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.client: subprocess.Popen[str] | None = None

    @classmethod
    def missing(cls) -> str:
        if not shutil.which("node"):
            return "no node"
        return "" if cls.package.exists() else "not in the cache"

    @classmethod
    def install(cls) -> None:
        subprocess.run(["npm", "install", "--silent", "--prefix", str(cls.home), "pm2"], check=True)

    @classmethod
    def version(cls) -> str:
        return (
            f"{json.loads((cls.package / 'package.json').read_text())['version']}, node {_output('node', '--version')}"
        )

    def launch(self) -> None:
        settings = {
            "exec_mode": "fork",
            "interpreter": "none",
            "autorestart": True,
            "restart_delay": 0,
            "min_uptime": 0,
            "max_restarts": 1_000_000,
            "vizion": False,
            "pmx": False,
            "out_file": "/dev/null",
            "error_file": "/dev/null",
        }
        script, *words = self.setup.command
        apps = [{"name": name, "script": script, "args": words, **settings} for name in self.setup.names]
        config = self.setup.directory / "ecosystem.json"
        config.write_text(json.dumps({"apps": apps}))
        self.spawn("node", self.package / "bin/pm2", "start", config, PM2_HOME=str(self.setup.directory / "pm2"))

    def connect(self) -> None:
        assert self.process
        self.process.wait(60)  # that was the command; the daemon goes on
        self.client = subprocess.Popen(
            ["node", "-e", PM2_CLIENT, str(self.package)],
            env=self.setup.environment(PM2_HOME=str(self.setup.directory / "pm2")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._ask("list")

    def root(self) -> int:
        return int((self.setup.directory / "pm2/pm2.pid").read_text())

    def _ask(self, *words: object) -> dict[str, Any]:
        assert self.client
        assert self.client.stdin
        assert self.client.stdout
        self.client.stdin.write(json.dumps(words) + "\n")
        self.client.stdin.flush()
        for line in self.client.stdout:
            if line.startswith("bench"):
                answer: dict[str, Any] = json.loads(line.removeprefix("bench"))
                if "error" in answer:
                    raise RuntimeError(f"pm2 {words[0]}: {answer['error']}")
                return answer
        raise RuntimeError("pm2's client ended")

    def start_all(self) -> None:
        self._ask("restart", "all")

    def stop_all(self) -> None:
        self._ask("stop", "all")

    def status_load(self, clients: int, seconds: float) -> Answers:
        answer = self._ask("load", clients, seconds)
        return summary(answer["latencies"], answer["seconds"], 0)

    def close(self) -> None:
        if self.client:
            self.client.kill()
            self.client.communicate()
        super().close()


def _output(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


def _file_limit() -> int:
    return min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
