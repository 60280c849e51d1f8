"""The config and manifest of a pushed chart equal those of helm byte by byte."""

from __future__ import annotations

import json

from models.charts.archives import metadata

FULL = {
    "type": "application", "version": "1.0.0", "name": "web", "home": "https://e.org", "kubeVersion": ">=1.20",
    "description": "a < b & c > d\u2028\x07", "keywords": ["k"], "sources": ["https://s.org", "https://t.org"],
    "maintainers": [{"email": "a@e.org", "name": "Anna"}, {"name": "Bert"}, {"email": "c@e.org"}], "icon": "i",
    "apiVersion": "v2", "appVersion": None, "deprecated": "true", "unknown": "x",
    "annotations": {
        "z": "1\u2028", "a": "2", "org.opencontainers.image.title": "other", "org.opencontainers.image.url": "u",
    },
    "dependencies": [{"repository": "r", "version": "1", "name": "d"}],
}  # fmt: skip


def test_the_config_has_fields_in_the_order_of_helm_without_empty_ones() -> None:
    assert metadata.config_json(FULL) == (
        b'{"name":"web","home":"https://e.org","sources":["https://s.org","https://t.org"],"version":"1.0.0",'
        b'"description":"a \\u003c b \\u0026 c \\u003e d ","keywords":["k"],'
        b'"maintainers":[{"name":"Anna","email":"a@e.org"},{"name":"Bert"},{"email":"c@e.org"}],"icon":"i",'
        b'"apiVersion":"v2","deprecated":true,"annotations":{"a":"2","org.opencontainers.image.title":"other",'
        b'"org.opencontainers.image.url":"u","z":"1\\u2028"},"kubeVersion":"\\u003e=1.20",'
        b'"dependencies":[{"name":"d","version":"1","repository":"r"}],"type":"application"}'
    )


def test_the_manifest_has_the_fields_and_annotations_of_helm() -> None:
    text = metadata.manifest_json(FULL, {"size": 1}, {"size": 2}, "2026-01-02T03:04:05Z")
    document = json.loads(text)
    assert list(document) == ["schemaVersion", "config", "layers", "annotations"]
    assert document["annotations"] == {
        "a": "2",
        "org.opencontainers.image.authors": "Anna (a@e.org), Bert,  (c@e.org)",
        "org.opencontainers.image.created": "2026-01-02T03:04:05Z",
        "org.opencontainers.image.description": "a < b & c > d ",
        "org.opencontainers.image.source": "https://s.org",
        "org.opencontainers.image.title": "web",
        "org.opencontainers.image.url": "u",
        "org.opencontainers.image.version": "1.0.0",
        "z": "1\u2028",
    }
    assert list(document["annotations"]) == sorted(document["annotations"])
