"""Pulling with `verify`: only archives signed by a key of the operator's keyring are accepted."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import chart_servers
import pytest
from chart_servers import FULL, Reply, WebServer, index_entry, index_file, post_json
from conftest import Server
from http_checks import running_server
from requirements import require
from small_charts import HELMS, helm_path

from models.charts.helm_errors import verification_reason


class Signer:
    """A signing key that exists for these tests only."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(mode=0o700)
        self.folder, self.name = folder, name
        self.gpg("--quick-gen-key", f"{name} <{name}@x.example>", "rsa2048", "sign", "never")
        self.public, self.secret = folder / "public.gpg", folder / "secret.gpg"
        self.gpg("--output", str(self.public), "--export")
        self.gpg("--output", str(self.secret), "--export-secret-keys")

    def gpg(self, *arguments: str) -> None:
        command = ["gpg", "--homedir", str(self.folder), "--batch", "--passphrase", "", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def prove(self, data: bytes, file_name: str) -> bytes:
        """A provenance that has only the digest of a file."""
        text, proof = self.folder / "text", self.folder / "proof"
        text.write_text(f"name: demo\n\n...\nfiles:\n  {file_name}: sha256:{hashlib.sha256(data).hexdigest()}\n")
        self.gpg("--yes", "--output", str(proof), "--clear-sign", str(text))
        return proof.read_bytes()

    def sign(self, data: bytes, version: str) -> bytes:
        """The provenance that helm writes for a chart."""
        folder = self.folder / version
        folder.mkdir()
        chart_servers.run_helm(folder, "create", "demo")
        command = (
            "package",
            "demo",
            f"--version={version}",
            "--sign",
            f"--key={self.name}",
            f"--keyring={self.secret}",
        )
        chart_servers.run_helm(folder, *command)
        self.data = (folder / f"demo-{version}.tgz").read_bytes()
        return (folder / f"demo-{version}.tgz.prov").read_bytes()

    def close(self) -> None:
        subprocess.run(["gpgconf", "--homedir", str(self.folder), "--kill", "all"], check=False, capture_output=True)


@pytest.fixture(scope="module")
def signers() -> Iterator[tuple[Signer, Signer]]:
    """A trusted and an untrusted signer. Their path is short because the agent of gpg has a socket in it."""
    require("gpg", "gpgconf")
    folder = Path(subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True).stdout.strip())
    found = Signer(folder / "a", "alice"), Signer(folder / "b", "mallory")
    yield found
    for one in found:
        one.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def web(signers: tuple[Signer, Signer]) -> Iterator[WebServer]:
    alice, mallory = signers
    with chart_servers.web_server() as one:
        proofs = {}
        archives = []
        for signer, version in ((alice, "1.0.0"), (mallory, "2.0.0"), (alice, "3.0.0")):
            proofs[version] = signer.sign(b"", version)
            archives.append(("demo", version, signer.data))
        archives[2] = ("demo", "3.0.0", chart_servers.chart_archive("demo", "3.0.0"))
        archives.append(("demo", "4.0.0", chart_servers.chart_archive("demo", "4.0.0")))
        one.serve(*archives)
        one.pages |= {f"/demo-{version}.tgz.prov": proof for version, proof in proofs.items()}
        yield one


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, web: WebServer, signers: tuple[Signer, Signer]
) -> Iterator[Server]:
    svc = {
        "security": FULL | {"allowed-hosts": [web.host_port]},
        "fetch": {"keyring": str(signers[0].public)},
        "helm": {"binary": helm_path("helm")},
    }
    with running_server(tmp_path_factory.mktemp("server"), svc=svc) as one:
        assert post_json(one, "/repos", {"name": "lab", "url": web.url}).status == 201
        yield one


def test_a_chart_signed_by_a_trusted_key_is_pulled(server: Server, signers: tuple[Signer, Signer]) -> None:
    answer = post_json(server, "/repos/pull", {"chart": "lab/demo:1.0.0", "verify": True})
    assert answer.status == 200, answer
    assert answer.headers["Content-Disposition"] == 'attachment; filename="demo-1.0.0.tgz"'


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("2.0.0", "no key in the keyring signed it"),
        ("3.0.0", "differs from the signed one"),
        ("4.0.0", "404"),
    ],
)
def test_a_chart_without_a_trusted_signature_is_refused(server: Server, version: str, message: str) -> None:
    answer = post_json(server, "/repos/pull", {"chart": f"lab/demo:{version}", "verify": True})
    assert answer.status == 400, answer
    assert message in answer.json["detail"]
    assert post_json(server, "/repos/pull", {"chart": f"lab/demo:{version}"}).status == 200


@pytest.mark.parametrize(
    ("version", "url", "signed_as", "status"),
    [
        ("1.0.0", "demo-v1.0.0.tgz", "demo-v1.0.0.tgz", 200),
        ("1.0.0+b1", "files/demo%201.0.0_b1.tgz?a=b", "demo 1.0.0_b1.tgz", 200),
        ("1.0.0", "archive.tgz", "demo-1.0.0.tgz", 400),
        ("1.0.0", "demo-1.0.0.tgz", "demo-2.0.0.tgz", 400),
        ("1.0.0", "files/..%2f..%2fx.tgz", "x.tgz", 200),
        ("1.0.0", "files/%00", "demo-1.0.0.tgz", 200),
    ],
)
def test_the_provenance_names_the_archive_as_its_url_does(
    server: Server, web: WebServer, signers: tuple[Signer, Signer], version: str, url: str, signed_as: str, status: int
) -> None:
    data = chart_servers.chart_archive("demo", version)
    path = f"/named/{url.partition('?')[0]}"
    web.pages |= {
        "/named/index.yaml": index_file(index_entry("demo", version, data, urls=[url])),
        path: data,
        f"{path}.prov": signers[0].prove(data, signed_as),
    }
    assert post_json(server, "/repos", {"name": "named", "url": f"{web.url}/named", "forceUpdate": True}).status == 201
    answer = post_json(server, "/repos/pull", {"chart": "named/demo", "version": version, "verify": True})
    assert answer.status == status, answer
    if status == 200:
        assert answer.headers["Content-Disposition"] == f'attachment; filename="demo-{version}.tgz"'


@pytest.mark.parametrize(
    ("reply", "status", "message"),
    [
        ((410, {}, b""), 400, "answered 410"),
        ((500, {}, b""), 502, "answered 500"),
        ((403, {}, b""), 502, "answered 403"),
        (b"<!DOCTYPE html>", 400, "no signature"),
        (b"", 400, "no signature"),
    ],
)
def test_a_provenance_that_cannot_be_fetched_is_reported(
    server: Server, web: WebServer, reply: Reply | bytes, status: int, message: str
) -> None:
    web.pages["/demo-4.0.0.tgz.prov"] = reply
    answer = post_json(server, "/repos/pull", {"chart": "lab/demo:4.0.0", "verify": True})
    del web.pages["/demo-4.0.0.tgz.prov"]
    assert (answer.status, message in answer.json["detail"]) == (status, True), answer


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize(
    ("keyring", "message"),
    [
        (b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n", "cannot read the keyring of svc.fetch.keyring"),
        (b"", "no key in the keyring signed it"),
    ],
)
def test_an_unusable_keyring_is_named(
    tmp_path: Path, signers: tuple[Signer, Signer], helm: str, keyring: bytes, message: str
) -> None:
    file = tmp_path / "keyring"
    file.write_bytes(keyring)
    (tmp_path / "demo-1.0.0.tgz").write_bytes(b"a chart")
    (tmp_path / "demo-1.0.0.tgz.prov").write_bytes(signers[0].prove(b"a chart", "demo-1.0.0.tgz"))
    command = [helm_path(helm), "verify", f"--keyring={file}", "demo-1.0.0.tgz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert message in verification_reason(done.stderr)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("Error: openpgp: signature made by revoked key", "is revoked"),
        ("Error: openpgp: key expired", "key that signed it has expired"),
        ("Error: openpgp: signature expired", "signature has expired"),
        ("Error: openpgp: invalid signature: RSA verification failure", "does not match its provenance"),
        ("Error: openpgp: invalid signature: hash tag doesn't match", "does not match its provenance"),
        ('Error: provenance does not contain a SHA for a file named "x-1.0.0.tgz"', "of another archive"),
        ("Error: failed to decode signature: signature block not found", "no signature"),
        ("Error: failed to load keyring: open /srv/keys: no such file or directory", "cannot read the keyring"),
        ("Error: message block must have at least two parts", "not valid"),
    ],
)
def test_the_reason_of_a_failed_verification_is_named(output: str, reason: str) -> None:
    assert reason in verification_reason(output)
    assert "/srv" not in verification_reason(output)


def test_a_caller_cannot_name_a_keyring(server: Server, signers: tuple[Signer, Signer]) -> None:
    body = {"chart": "lab/demo:2.0.0", "verify": True, "keyring": str(signers[1].public)}
    assert post_json(server, "/repos/pull", body).status == 400


def test_a_missing_keyring_is_reported(tmp_path: Path, web: WebServer) -> None:
    svc = {"security": FULL | {"allowed-hosts": [web.host_port]}, "fetch": {"keyring": str(tmp_path / "none.gpg")}}
    with running_server(tmp_path, svc=svc) as one:
        post_json(one, "/repos", {"name": "lab", "url": web.url})
        answer = post_json(one, "/repos/pull", {"chart": "lab/demo:1.0.0", "verify": True})
    assert answer.status == 400
    assert "svc.fetch.keyring" in answer.json["detail"]
    assert str(tmp_path) not in answer.text
