"""The same charts pushed by helm and by this server to a real registry: the same digests and manifests."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart_servers import running_registry as running_registry
from conftest import Server
from http_checks import running_server
from small_charts import FULL, HELMS, KEY, helm_path, post_chart, tar_archive

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CREATED = re.compile(rb'"org.opencontainers.image.created":"[^"]+"')

CHARTS: dict[str, str] = {
    "ingress": """apiVersion: v2
name: NAME
description: "An ingress controller & proxy <fast>"
type: application
version: 41.3.0
# renovate: image=ingress
appVersion: v3.7.11
kubeVersion: '>=1.25.0-0'
keywords:
  - ingress
  - networking
home: https://ingress.example/
sources:
  - https://git.example/ingress
  - https://git.example/ingress-chart
maintainers:
  - name: anna
    email: anna@example.org
  - name: bert
  - email: nobody@example.org
icon: https://ingress.example/logo.png?a=1&b=2
annotations:
  ingress.example/z: v3.6.0
  artifacthub.io/changes: |
    - kind: added
      description: "new: <options> & more ✨"
  artifacthub.io/prerelease: "false"
""",
    "logs": """apiVersion: v2
name: NAME
description: >-
  Logs in
  several modes
type: application
appVersion: 3.6.12
version: 7.3.0-rc.1
home: https://logs.example
dependencies:
  - name: store
    alias: store
    version: 5.4.0
    repository: https://charts.example/
    condition: store.enabled
    tags: [a, b]
    import-values:
      - data
      - {child: exports.a, parent: b}
  - name: agent
    version: ~0.5
    repository: "oci://charts.example/x"
    enabled: true
maintainers: []
""",
    "several-lines": """apiVersion: v2
name: NAME
version: 1.2.3
description: |
  one\ttab
  two
keywords: ["a\\u00a0b\\u200bc"]
home: "a\\u2003\\u2028b"
annotations: {a: "x\\ny\\u200b"}
maintainers: [{name: "A\\nB", email: "\\x07", url: "\\x1f"}]
dependencies: [{name: d, version: "1", repository: "x\\ty", import-values: ["a\\tb"], alias: e}]
""",
    "smallest": "apiVersion: v2\nname: NAME\nversion: 0.1.0\n",
    "old": """apiVersion: v1
name: NAME
version: 1.0.0+build.7
appVersion: "1.10"
deprecated: true
tillerVersion: ">=2"
engine: gotpl
""",
    "scalars": """apiVersion: v2
name: NAME
version: 1.2.3
appVersion: 1.10
description: 12
icon: 0x1F
home: 1e3
condition: yes
tags: 'no'
kubeVersion: 2024-01-31
sources: [on, True, 12:30:45, 0o17, 017]
""",
    "nulls": """apiVersion: v2
name: NAME
version: 1.2.3
appVersion: ~
description: 'null'
home: "~"
icon:
keywords:
""",
    "annotated": """apiVersion: v2
name: NAME
version: 1.2.3
annotations:
  b: 1
  a: true
  c: 1.50
  d: ~
  e: ""
  org.opencontainers.image.title: other
  org.opencontainers.image.version: 9.9.9
  org.opencontainers.image.url: https://own.example
  org.opencontainers.image.created: never
  "1": x
  é: "\\u2028\\u2029\\t\\"\\\\"
  3: y
""",
    "empty": """apiVersion: v2
name: NAME
version: 1.2.3
type: ''
description: ''
keywords: []
sources: []
annotations: {}
dependencies: []
condition: a.b,c.d
tags: x,y
deprecated: false
""",
    "lists": """apiVersion: v2
name: NAME
version: 1.2.3
keywords: [a, 1, 2.50, true, "true", ~]
sources: [https://one.example, "x y"]
maintainers:
- {name: "A & B", email: "", url: https://a.example}
- {name: 7}
""",
    "spelled": """{"apiVersion": "v2", "name": "NAME", "version": "1.2.3", "appVersion": "\\u00e9\\u0001",
"icon": "a/b", "home": &h "https://x.example", "sources": [*h], "type": "library", "description": "  "}
""",
    "odd-numbers": """apiVersion: v2
name: NAME
version: 1.2.3
appVersion: 1_000.50
description: -0b11
home: .5
icon: 1234567.5
condition: +.inf
tags: 12345678901234567890123
annotations:
  {a: 0o17, b: 1e-5, c: 1., d: 08, e: 1__0, f: -.5, g: y, h: N, i: 1:30, j: 0x, k: +1, l: -0, m: .nan, n: 0x_1F, o: 1e}
keywords:
  [1e21, 100000, 1000000, 0.0001, 0.00001, 9223372036854775808, 18446744073709551616, -9223372036854775809, 1e300]
""",
}  # fmt: skip

REQUIREMENTS = {
    "old": "dependencies:\n- {name: a, version: 1.0.0, repository: https://charts.example, condition: a.on}\n",
    "smallest": "dependencies:\n- {name: b, version: ~1, alias: c, import-values: [d]}\n",
    "lists": "dependencies: []\n",
}
"""The requirements.yaml of some charts."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_registry(tmp_path_factory.mktemp("registry")) as place:
        yield place


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, registry: str) -> Iterator[Server]:
    security = FULL["security"] | {"allowed-hosts": [registry]}
    with running_server(tmp_path_factory.mktemp("server"), svc={"security": security}) as running:
        yield running


def manifest(registry: str, repository: str, tag: str) -> bytes:
    url = f"http://{registry}/v2/{repository}/manifests/{tag}"
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": MANIFEST})) as response:
        return bytes(response.read())


def config(registry: str, repository: str, manifest: bytes) -> bytes:
    digest = json.loads(manifest)["config"]["digest"]
    with urllib.request.urlopen(f"http://{registry}/v2/{repository}/blobs/{digest}") as response:
        return bytes(response.read())


@pytest.mark.parametrize("program", HELMS)
@pytest.mark.parametrize("name", CHARTS)
def test_a_pushed_chart_has_the_digests_of_a_push_by_helm(
    server: Server, registry: str, tmp_path: Path, name: str, program: str
) -> None:
    text = CHARTS[name].replace("NAME", name)
    version = re.search(r'"?version"?: "?([^\s",]+)', text)
    assert version
    tag = version[1].replace("+", "_")
    files = {"Chart.yaml": text, "values.yaml": "a: 1\n"}
    if name in REQUIREMENTS:
        files["requirements.yaml"] = REQUIREMENTS[name]
    archive = tar_archive({f"{name}/{path}": content for path, content in files.items()})
    file = tmp_path / f"{name}-{version[1]}.tgz"
    file.write_bytes(archive)
    command = [helm_path(program), "push", "--plain-http", file.name, f"oci://{registry}/{program}"]
    done = subprocess.run(command, cwd=tmp_path, env={"HOME": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = post_chart(server, "/api/v1/repos/push", KEY, chart=archive, remote=f"oci://{registry}/ours")
    assert answer.status == 200, answer
    theirs, own = manifest(registry, f"{program}/{name}", tag), manifest(registry, f"ours/{name}", tag)
    assert config(registry, f"ours/{name}", own) == config(registry, f"{program}/{name}", theirs)
    assert CREATED.sub(b"", own) == CREATED.sub(b"", theirs)
    (layer,) = json.loads(own)["layers"]
    assert layer["digest"] == f"sha256:{hashlib.sha256(archive).hexdigest()}"
