"""Edge cases of addresses, repository URLs and base paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_checks import running_server
from small_charts import KEY, post_chart, sample_chart

from models.errors import Invalid
from supervisor.charts.repositories import configured
from supervisor.http.dns import Policy


@pytest.mark.parametrize("address", ["::ffff:0:127.0.0.1", "::ffff:0:a9fe:a9fe", "::ffff:0:0:0"])
def test_an_ipv4_translated_address_is_checked_as_its_ipv4_address(address: str) -> None:
    assert Policy().refusal(address) is not None


def test_an_ipv4_translated_address_of_a_public_host_is_allowed() -> None:
    assert Policy().refusal("::ffff:0:8.8.8.8") is None
    assert Policy(block_private=True).refusal("::ffff:0:10.0.0.1") == "private"


@pytest.mark.parametrize("url", ["http://a.example#@b.example/", "https://a.example/charts#", "http://a.example/#x"])
def test_a_repository_url_with_a_fragment_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="fragment"):
        configured("a", url)


def test_errors_below_the_base_path_of_the_charts_are_problem_documents(tmp_path: Path) -> None:
    with running_server(tmp_path, svc={"rest": {"base-path": "/helm/v9"}}) as server:
        for path in ("/helm/v9/nothing", "/helm/v9/repos/a/b/c", "/charts/helm/v9/nothing"):
            answer = server.get(path)
            assert (answer.status, answer.headers["Content-Type"]) == (404, "application/problem+json")
            assert answer.json["message"] == answer.json["detail"]
            assert answer.json["timestamp"].endswith("Z")
        assert server.get("/api/v1/nothing").headers["Content-Type"] == "application/json"
        assert post_chart(server, "/helm/v9/charts/template/upload", KEY, chart=b"").status == 400
        assert post_chart(server, "/api/v1/charts/template/upload", KEY, chart=sample_chart()).status == 404
