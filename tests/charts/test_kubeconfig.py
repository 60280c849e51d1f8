"""Kubeconfigs: the choice of the file, merging of several files, and the supported settings."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from models.charts.kubeconfig import Access, BadKubeconfig, DataOrFile, UnsupportedKubeconfig, access, address, merged
from models.errors import Upstream
from supervisor.charts.kube.config import Kube

HERE = Path("/somewhere")


def kubeconfig_with(user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def read(*documents: dict[str, Any], context: str | None = None) -> Access:
    return access(merged([(HERE / "config", document) for document in documents]), context)


def write(folder: Path, name: str, *documents: dict[str, Any]) -> Path:
    (folder / name).write_text(yaml.safe_dump(documents[0]))
    return folder / name


def test_a_context_selects_cluster_and_user() -> None:
    found = read(kubeconfig_with({"token": "t"}, {"certificate-authority-data": base64.b64encode(b"ca").decode()}))
    assert (found.scheme, found.host, found.port, found.prefix) == ("https", "api.example", 6443, "")
    assert found.authority == DataOrFile(data=b"ca")
    assert found.token == DataOrFile(data=b"t")
    assert found.verify


@pytest.mark.parametrize(
    ("server", "meant"),
    [
        ("https://a", ("https", "a", 443, "")),
        ("http://a", ("http", "a", 80, "")),
        ("https://a:1/k8s/clusters/c-1/", ("https", "a", 1, "/k8s/clusters/c-1")),
        ("https://[fd00::1]:6443", ("https", "fd00::1", 6443, "")),
        ("a:8080", ("http", "a", 8080, "")),
    ],
)
def test_server_addresses_are_parsed(server: str, meant: tuple[str, str, int, str]) -> None:
    assert address(server) == meant


@pytest.mark.parametrize("server", ["", "https://", "ftp://a", "https://a:port", "https://a:99999"])
def test_invalid_server_addresses_are_refused(server: str) -> None:
    with pytest.raises(BadKubeconfig):
        address(server)


def test_the_first_of_several_files_takes_precedence() -> None:
    first = {"users": [{"name": "u", "user": {"token": "first"}}]}
    second = {**kubeconfig_with({"token": "second"}), "current-context": "y"}
    second["contexts"].append({"name": "y", "context": {"cluster": "c", "user": "u"}})
    assert read(first, second).token == DataOrFile(data=b"first")
    assert merged([(HERE, {"current-context": "z"}), (HERE, second)])["current-context"] == "z"


def test_paths_are_relative_to_their_own_file() -> None:
    documents = [
        (Path("/a/config"), kubeconfig_with({"client-certificate": "c.pem", "client-key": "/k.pem", "tokenFile": "t"}))
    ]
    found = access(merged(documents), None)
    assert found.certificate == DataOrFile(file=Path("/a/c.pem"))
    assert found.key == DataOrFile(file=Path("/k.pem"))
    assert found.token == DataOrFile(file=Path("/a/t"))
    assert set(found.files) == {Path("/a/c.pem"), Path("/k.pem"), Path("/a/t")}


def test_data_overrides_a_file_and_a_token_file_overrides_a_token() -> None:
    data = base64.b64encode(b"inside").decode()
    found = read(
        kubeconfig_with(
            {"token": "t", "tokenFile": "/t"},
            {"certificate-authority": "/ca", "certificate-authority-data": data},
        )
    )
    assert found.authority == DataOrFile(data=b"inside")
    assert found.token == DataOrFile(file=Path("/t"))


def test_a_named_context_overrides_the_current_context() -> None:
    document = kubeconfig_with({"token": "t"})
    document["contexts"].append({"name": "other", "context": {"cluster": "d", "user": "u"}})
    document["clusters"].append({"name": "d", "cluster": {"server": "https://other", "tls-server-name": "n"}})
    found = read(document, context="other")
    assert (found.host, found.server_name) == ("other", "n")


def test_insecure_skip_tls_verify_ignores_the_certificate_authority() -> None:
    found = read(kubeconfig_with({}, {"insecure-skip-tls-verify": True, "certificate-authority": "/ca"}))
    assert not found.verify
    assert not found.authority


def test_basic_authentication_and_impersonation_are_read() -> None:
    found = read(
        kubeconfig_with(
            {"username": "n", "password": "p", "as": "boss", "as-groups": ["g", "h"], "as-user-extra": {"k": ["v"]}}
        )
    )
    assert found.basic == ("n", "p")
    assert found.headers == (
        ("Impersonate-User", "boss"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Group", "h"),
        ("Impersonate-Extra-k", "v"),
    )


def test_the_repr_has_no_secrets() -> None:
    found = read(kubeconfig_with({"token": "sesame", "username": "n", "password": "opensesame"}))
    assert "sesame" not in repr(found)


@pytest.mark.parametrize(
    "document",
    [
        kubeconfig_with({"exec": {"command": "aws"}}),
        kubeconfig_with({"auth-provider": {"name": "gcp"}}),
        kubeconfig_with({}, {"proxy-url": "http://proxy:3128"}),
    ],
)
def test_settings_that_only_helm_supports_are_unsupported(document: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedKubeconfig):
        read(document)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {**kubeconfig_with(), "current-context": "nothing"},
        {**kubeconfig_with(), "current-context": None},
        {**kubeconfig_with(), "clusters": []},
        {**kubeconfig_with(), "users": []},
        {**kubeconfig_with(), "users": [{"user": {}}]},
        {**kubeconfig_with(), "users": ["u"]},
        {**kubeconfig_with(), "current-context": ["x"]},
        {**kubeconfig_with(), "clusters": 3},
        {**kubeconfig_with(), "contexts": [{"name": "x", "context": {"cluster": ["c"]}}]},
        kubeconfig_with({"token": 12}),
        kubeconfig_with({"tokenFile": 12}),
        kubeconfig_with({"as": "boss", "as-groups": "g"}),
        kubeconfig_with({"as": "boss", "as-user-extra": ["g"]}),
        kubeconfig_with({}, {"certificate-authority-data": "%%%"}),
    ],
)
def test_invalid_kubeconfigs_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(BadKubeconfig):
        read(document)


# Choice of the kubeconfig


def write_service_account(folder: Path) -> Path:
    for name in ("token", "ca.crt"):
        (folder / name).write_text(name)
    return folder


def test_configured_file_then_variable_then_home_then_in_cluster_is_used(tmp_path: Path) -> None:
    configured, named = write(tmp_path, "configured", kubeconfig_with()), write(tmp_path, "named", kubeconfig_with())
    (tmp_path / ".kube").mkdir()
    home = write(tmp_path / ".kube", "config", kubeconfig_with())
    environ = {"KUBECONFIG": str(named), "HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    inside = write_service_account(tmp_path)

    def files(configured: Path | None) -> tuple[Path, ...] | None:
        place = Kube(configured, None, environ, inside).place()
        return place.files if place else None

    assert files(configured) == (configured,)
    assert files(None) == (named,)
    del environ["KUBECONFIG"]
    assert files(None) == (home,)
    home.unlink()
    assert files(None) == ()
    del environ["KUBERNETES_SERVICE_HOST"]
    assert files(None) is None


def test_a_missing_named_kubeconfig_is_not_replaced_by_another(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube", "config", kubeconfig_with())
    missing = tmp_path / "later"
    assert Kube(missing, None, {"HOME": str(tmp_path)}).place() is None
    variable = Kube(None, None, {"HOME": str(tmp_path), "KUBECONFIG": str(missing)})
    assert variable.place() is None
    write(tmp_path, "later", kubeconfig_with())
    assert variable.place() is not None


def test_missing_files_in_the_kubeconfig_variable_are_skipped(tmp_path: Path) -> None:
    users = write(tmp_path, "users", {"users": [{"name": "u", "user": {"token": "from-users"}}]})
    rest = write(tmp_path, "rest", kubeconfig_with({"token": "from-rest"}))
    listed = os.pathsep.join(map(str, [tmp_path / "missing", users, rest]))
    kube = Kube(None, None, {"KUBECONFIG": listed})
    place = kube.place()
    assert place is not None
    assert place.files == (users, rest)
    assert kube.access(place).token == DataOrFile(data=b"from-users")
    assert place.environment == {"KUBECONFIG": os.pathsep.join(map(str, [users, rest]))}


def test_the_service_account_of_a_pod_is_used(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    kube = Kube(None, None, environ, write_service_account(tmp_path))
    place = kube.place()
    assert place is not None
    found = kube.access(place)
    assert (found.scheme, found.host, found.port) == ("https", "fd00::1", 6443)
    assert found.token == DataOrFile(file=tmp_path / "token")
    assert found.authority == DataOrFile(file=tmp_path / "ca.crt")
    assert place.environment == environ


def test_the_requested_context_overrides_the_configured_one(tmp_path: Path) -> None:
    file = write(tmp_path, "config", kubeconfig_with())
    kube = Kube(file, "configured", {})
    configured, chosen = kube.place(), kube.place(context="chosen")
    assert configured is not None
    assert chosen is not None
    assert (configured.arguments, chosen.arguments) == (["--kube-context=configured"], ["--kube-context=chosen"])


def test_a_requested_file_does_not_use_the_configured_context(tmp_path: Path) -> None:
    file = write(tmp_path, "theirs", kubeconfig_with())
    kube = Kube(write(tmp_path, "config", kubeconfig_with()), "configured", {})
    place = kube.place(file)
    assert place is not None
    assert (place.files, place.arguments) == ((file,), [])
    assert kube.place(tmp_path / "missing") is None


@pytest.mark.parametrize("text", ["{", "- a list", "a: [", "\x00", "!!python/object:os.system {}"])
def test_an_invalid_file_is_an_upstream_error_without_its_path(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    kube = Kube(file, None, {})
    place = kube.place()
    assert place is not None
    with pytest.raises(Upstream) as failure:
        kube.access(place)
    assert str(tmp_path) not in failure.value.message


@pytest.mark.parametrize(
    ("environ", "server", "is_helms"),
    [
        ({"HTTPS_PROXY": "http://p"}, "https://api.example", True),
        ({"https_proxy": "http://p"}, "https://api.example", True),
        ({"HTTP_PROXY": "http://p"}, "https://api.example", False),
        ({"HTTPS_PROXY": "http://p"}, "https://127.0.0.1:6443", False),
        ({"HTTPS_PROXY": "http://p"}, "https://localhost:6443", False),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "other, .example"}, "https://api.example", False),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "ple"}, "https://api.example", True),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, "https://api.example", False),
    ],
)
def test_a_proxy_of_the_environment_is_unsupported(
    tmp_path: Path, environ: dict[str, str], server: str, is_helms: bool
) -> None:
    kube = Kube(write(tmp_path, "config", kubeconfig_with({}, {"server": server})), None, environ)
    place = kube.place()
    assert place is not None
    if is_helms:
        with pytest.raises(UnsupportedKubeconfig):
            kube.access(place)
    else:
        assert kube.access(place).scheme == "https"


@pytest.mark.parametrize(
    ("driver", "meant"), [("", ""), ("secret", ""), ("Secrets", ""), ("configmap", "configmap"), ("sql", "sql")]
)
def test_the_storage_driver_of_helm_is_read(tmp_path: Path, driver: str, meant: str) -> None:
    environ = {"HELM_DRIVER": driver, "HELM_DRIVER_SQL_CONNECTION_STRING": "postgres://secret"}
    kube = Kube(write(tmp_path, "config", kubeconfig_with()), None, environ)
    place = kube.place()
    assert place is not None
    assert kube.driver == meant
    assert ("HELM_DRIVER" in place.environment) == bool(meant)
    assert "postgres" not in repr(place)
