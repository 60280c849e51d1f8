"""Kubeconfigs: which file is used, how several are merged, and the supported settings."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from models.charts.kubeconfig import Access, BadKubeconfig, Blob, UnsupportedKubeconfig, access, address, merged
from models.errors import Upstream
from supervisor.charts.kube.config import Kube

HERE = Path("/somewhere")


def one(user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
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


def test_a_context_names_the_cluster_and_the_user() -> None:
    found = read(one({"token": "t"}, {"certificate-authority-data": base64.b64encode(b"ca").decode()}))
    assert (found.scheme, found.host, found.port, found.prefix) == ("https", "api.example", 6443, "")
    assert found.authority == Blob(data=b"ca")
    assert found.token == Blob(data=b"t")
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
def test_addresses_of_servers(server: str, meant: tuple[str, str, int, str]) -> None:
    assert address(server) == meant


@pytest.mark.parametrize("server", ["", "https://", "ftp://a", "https://a:port", "https://a:99999"])
def test_an_address_that_is_none_is_recognized_as_invalid(server: str) -> None:
    with pytest.raises(BadKubeconfig):
        address(server)


def test_the_first_value_of_several_files_counts() -> None:
    first = {"users": [{"name": "u", "user": {"token": "first"}}]}
    second = {**one({"token": "second"}), "current-context": "y"}
    second["contexts"].append({"name": "y", "context": {"cluster": "c", "user": "u"}})
    assert read(first, second).token == Blob(data=b"first")
    assert merged([(HERE, {"current-context": "z"}), (HERE, second)])["current-context"] == "z"


def test_a_path_is_that_of_its_own_file() -> None:
    documents = [(Path("/a/config"), one({"client-certificate": "c.pem", "client-key": "/k.pem", "tokenFile": "t"}))]
    found = access(merged(documents), None)
    assert found.certificate == Blob(file=Path("/a/c.pem"))
    assert found.key == Blob(file=Path("/k.pem"))
    assert found.token == Blob(file=Path("/a/t"))
    assert set(found.files) == {Path("/a/c.pem"), Path("/k.pem"), Path("/a/t")}


def test_data_wins_over_a_file_and_a_token_file_over_a_token() -> None:
    data = base64.b64encode(b"inside").decode()
    found = read(
        one(
            {"token": "t", "tokenFile": "/t"},
            {"certificate-authority": "/ca", "certificate-authority-data": data},
        )
    )
    assert found.authority == Blob(data=b"inside")
    assert found.token == Blob(file=Path("/t"))


def test_a_named_context_is_not_the_current_one() -> None:
    document = one({"token": "t"})
    document["contexts"].append({"name": "other", "context": {"cluster": "d", "user": "u"}})
    document["clusters"].append({"name": "d", "cluster": {"server": "https://other", "tls-server-name": "n"}})
    found = read(document, context="other")
    assert (found.host, found.server_name) == ("other", "n")


def test_insecure_means_that_no_certificate_authority_is_checked() -> None:
    found = read(one({}, {"insecure-skip-tls-verify": True, "certificate-authority": "/ca"}))
    assert not found.verify
    assert not found.authority


def test_a_name_and_a_password_and_whom_we_act_for() -> None:
    found = read(
        one({"username": "n", "password": "p", "as": "boss", "as-groups": ["g", "h"], "as-user-extra": {"k": ["v"]}})
    )
    assert found.basic == ("n", "p")
    assert found.headers == (
        ("Impersonate-User", "boss"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Group", "h"),
        ("Impersonate-Extra-k", "v"),
    )


def test_secrets_are_not_shown() -> None:
    found = read(one({"token": "sesame", "username": "n", "password": "opensesame"}))
    assert "sesame" not in repr(found)


@pytest.mark.parametrize(
    "document",
    [
        one({"exec": {"command": "aws"}}),
        one({"auth-provider": {"name": "gcp"}}),
        one({}, {"proxy-url": "http://proxy:3128"}),
    ],
)
def test_what_only_helm_speaks(document: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedKubeconfig):
        read(document)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {**one(), "current-context": "nothing"},
        {**one(), "current-context": None},
        {**one(), "clusters": []},
        {**one(), "users": []},
        {**one(), "users": [{"user": {}}]},
        {**one(), "users": ["u"]},
        {**one(), "current-context": ["x"]},
        {**one(), "clusters": 3},
        {**one(), "contexts": [{"name": "x", "context": {"cluster": ["c"]}}]},
        one({"token": 12}),
        one({"tokenFile": 12}),
        one({"as": "boss", "as-groups": "g"}),
        one({"as": "boss", "as-user-extra": ["g"]}),
        one({}, {"certificate-authority-data": "%%%"}),
    ],
)
def test_a_kubeconfig_that_cannot_be_used(document: dict[str, Any]) -> None:
    with pytest.raises(BadKubeconfig):
        read(document)


# Which one counts


def account(folder: Path) -> Path:
    for name in ("token", "ca.crt"):
        (folder / name).write_text(name)
    return folder


def test_the_order_is_configured_then_variable_then_home_then_in_cluster(tmp_path: Path) -> None:
    configured, named = write(tmp_path, "configured", one()), write(tmp_path, "named", one())
    (tmp_path / ".kube").mkdir()
    home = write(tmp_path / ".kube", "config", one())
    environ = {"KUBECONFIG": str(named), "HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    inside = account(tmp_path)

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


def test_one_that_is_named_and_not_is_missing_replaced_by_another(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube", "config", one())
    missing = tmp_path / "later"
    assert Kube(missing, None, {"HOME": str(tmp_path)}).place() is None
    variable = Kube(None, None, {"HOME": str(tmp_path), "KUBECONFIG": str(missing)})
    assert variable.place() is None
    write(tmp_path, "later", one())
    assert variable.place() is not None


def test_the_variable_may_list_files_of_which_some_are_missing(tmp_path: Path) -> None:
    users = write(tmp_path, "users", {"users": [{"name": "u", "user": {"token": "from-users"}}]})
    rest = write(tmp_path, "rest", one({"token": "from-rest"}))
    listed = os.pathsep.join(map(str, [tmp_path / "missing", users, rest]))
    kube = Kube(None, None, {"KUBECONFIG": listed})
    place = kube.place()
    assert place is not None
    assert place.files == (users, rest)
    assert kube.access(place).token == Blob(data=b"from-users")
    assert place.environment == {"KUBECONFIG": os.pathsep.join(map(str, [users, rest]))}


def test_the_account_of_a_pod(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    kube = Kube(None, None, environ, account(tmp_path))
    place = kube.place()
    assert place is not None
    found = kube.access(place)
    assert (found.scheme, found.host, found.port) == ("https", "fd00::1", 6443)
    assert found.token == Blob(file=tmp_path / "token")
    assert found.authority == Blob(file=tmp_path / "ca.crt")
    assert place.environment == environ


def test_the_context_is_that_of_the_request_or_the_configured_one(tmp_path: Path) -> None:
    file = write(tmp_path, "config", one())
    kube = Kube(file, "configured", {})
    configured, chosen = kube.place(), kube.place(context="chosen")
    assert configured is not None
    assert chosen is not None
    assert (configured.arguments, chosen.arguments) == (["--kube-context=configured"], ["--kube-context=chosen"])


def test_anothers_choice_of_a_file_does_not_take_the_configured_context(tmp_path: Path) -> None:
    file = write(tmp_path, "theirs", one())
    kube = Kube(write(tmp_path, "config", one()), "configured", {})
    place = kube.place(file)
    assert place is not None
    assert (place.files, place.arguments) == ((file,), [])
    assert kube.place(tmp_path / "missing") is None


@pytest.mark.parametrize("text", ["{", "- a list", "a: [", "\x00", "!!python/object:os.system {}"])
def test_a_file_that_is_none_is_the_clusters_failure_and_its_path_is_not_reported(tmp_path: Path, text: str) -> None:
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
def test_a_proxy_between_us_and_the_cluster_is_helms_to_use(
    tmp_path: Path, environ: dict[str, str], server: str, is_helms: bool
) -> None:
    kube = Kube(write(tmp_path, "config", one({}, {"server": server})), None, environ)
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
def test_where_helm_keeps_releases(tmp_path: Path, driver: str, meant: str) -> None:
    environ = {"HELM_DRIVER": driver, "HELM_DRIVER_SQL_CONNECTION_STRING": "postgres://secret"}
    kube = Kube(write(tmp_path, "config", one()), None, environ)
    place = kube.place()
    assert place is not None
    assert kube.driver == meant
    assert ("HELM_DRIVER" in place.environment) == bool(meant)
    assert "postgres" not in repr(place)
