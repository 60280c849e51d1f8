"""Charts by rule: a number makes one chart of the features that charts have, and always the same one."""

from __future__ import annotations

import json
import random
from typing import Any

import yaml
from attrs import frozen
from chart_servers import chart_archive
from small_charts import files_of

_MAP = """apiVersion: v1
kind: ConfigMap
metadata:
  name: {{{{ .Release.Name }}}}-{name}
  labels: {{{{- include "{chart}.labels" . | nindent 4 }}}}
data:
{body}
"""
_HELPERS = """{{{{/* Labels of {chart} */}}}}
{{{{- define "{chart}.labels" -}}}}
chart: {{{{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}}}
release: {{{{ .Release.Name | trunc 20 }}}}
{{{{- end }}}}
"""
_LINES = (
    "  image: {{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion | quote }}",
    "  count: {{ .Values.count | int | add 1 | quote }}",
    "  global: {{ (.Values.global | default dict).region | default \"none\" | quote }}",
    "  text: {{ tpl .Values.text . | quote }}",
    '  file: {{ .Files.Get "files/a.txt" | b64enc | quote }}',
    "  found: {{ lookup \"v1\" \"Secret\" \"default\" \"a\" | toJson | quote }}",
    '  list: {{ range $i, $e := .Values.list }}{{ if $i }},{{ end }}{{ $e }}{{ end }}',
    "  nested: |-\n{{ toYaml .Values.nested | indent 4 }}",
    '  version: {{ .Capabilities.KubeVersion.Version | quote }}',
    '  batch: {{ .Capabilities.APIVersions.Has "batch/v1" | quote }}',
    '  sum: {{ .Values.nested | toJson | sha256sum | trunc 8 | quote }}',
    '  upgrade: {{ .Release.IsUpgrade | quote }}',
    '  imported: {{ .Values.imported | default "nothing" | toString | quote }}',
    '  glob: {{ range $path, $_ := .Files.Glob "files/*" }}{{ $path }};{{ end }}',
    '  merged: {{ mergeOverwrite (dict "a" 1 "b" 2) (.Values.nested | default dict) | toJson | quote }}',
    '  unicode: "größer 数 {{ .Values.text | len }}"',
)  # fmt: skip
_HOOK = """{{{{- if .Values.hooks }}}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{{{ .Release.Name }}}}-{chart}-hook
  annotations:
    {{"helm.sh/hook": "{hook}", "helm.sh/hook-weight": "{weight}", "helm.sh/hook-delete-policy": hook-succeeded}}
spec: {{template: {{spec: {{restartPolicy: Never, containers: [{{name: a, image: b}}]}}}}}}
{{{{- end }}}}
"""
_CRD = """apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {chart}s.example.org}}
spec: {{group: example.org, scope: Namespaced, names: {{kind: K, plural: {chart}s}}, versions: []}}
"""


@frozen
class Made:
    """A chart, and the values of a request about it."""

    name: str
    version: str
    archive: bytes
    values: dict[str, Any]


def made(number: int, repository: str) -> Made:
    """`repository` is a URL with the charts `cache` and `queue`, versions 1.0.0 to 1.2.0 and 2.0.0."""
    choose = random.Random(number)
    name = f"made{number}"
    files, values, facts = _plain(choose, name)
    dependencies, vendored = _dependencies(choose, name, values, repository)
    files |= vendored
    if dependencies:
        facts["dependencies"] = dependencies
    files["values.yaml"] = yaml.safe_dump(values, sort_keys=choose.random() < 0.5, allow_unicode=True)
    version = choose.choice(["0.1.0", "1.2.3-rc.1", "10.0.0+build.5", "1.0.0"])
    archive = chart_archive(name, version, files, **facts)
    return Made(name, version, archive, _overrides(choose, dependencies))


def _plain(choose: random.Random, name: str) -> tuple[dict[str, str | bytes], dict[str, Any], dict[str, Any]]:
    """Files, values and metadata without dependencies."""
    values: dict[str, Any] = {
        "image": {"name": "nginx", "tag": choose.choice(["", "1.25", 1.5, None])},
        "count": choose.choice([1, 3.0, 10**7, "7"]),
        "text": choose.choice(["plain", "{{ .Release.Name }}", "{{ .Values.count }}: ok"]),
        "list": choose.choice([[], ["a", 1, True], ["yes", "no"]]),
        "nested": choose.choice([{}, {"a": {"b": [1, {"c": None}]}}, {"on": "off", "n": 1e3, "date": "2001-01-01"}]),
        "hooks": choose.random() < 0.7,
    }
    files: dict[str, str | bytes] = {"templates/_helpers.tpl": _HELPERS.format(chart=name), "files/a.txt": "a\n"}
    for part in range(choose.randint(1, 3)):
        lines = "\n".join(choose.sample(_LINES, choose.randint(2, 6)))
        files[f"templates/map{part}.yaml"] = _MAP.format(name=f"{name}-{part}", chart=name, body=lines)
    files["templates/map.yaml"] = choose.choice(["---\n# nothing\n---\n", "{{- if false }}\na: b\n{{- end }}"])
    optional: dict[str, str] = {
        "templates/hook.yaml": _HOOK.format(chart=name, hook=choose.choice(["pre-install", "post-upgrade", "test"]),
                                            weight=choose.randint(-5, 5)),
        "templates/NOTES.txt": "{{ .Release.Name }} is {{ if .Release.IsInstall }}new{{ else }}old{{ end }}\n",
        "crds/crd.yaml": _CRD.format(chart=name),
        "README.md": f"# {name}\n\n| a | b |\n|---|---|\n",
        "values.schema.json": json.dumps(
            {"type": "object", "properties": {"hooks": {"type": "boolean"}, "count": {"type": ["number", "string"]}}}
        ),
        ".helmignore": "*.bak\nfiles/secret*\n",
        "files/secret.txt": "x",
        "LICENSE": "free\r\n",
    }  # fmt: skip
    files |= {path: text for path, text in optional.items() if choose.random() < 0.5}
    facts = {
        "appVersion": choose.choice(["1.0", "v2", 3, ""]), "description": choose.choice(["A chart", "Größe: <b> & co"]),
        "kubeVersion": ">=1.19.0-0", "icon": "https://example.org/i.png", "home": "https://example.org",
        "keywords": ["a", "b"], "annotations": {"z": "1", "a": "two"}, "deprecated": choose.random() < 0.2,
        "maintainers": [{"name": "n", "email": "n@example.org"}], "type": "application",
    }  # fmt: skip
    return files, values, {key: value for key, value in facts.items() if choose.random() < 0.6}


def _sub_chart(choose: random.Random, name: str, is_library: bool) -> bytes:
    body = "\n".join(choose.sample(_LINES[2:4], 2))
    files: dict[str, str | bytes] = {
        "templates/_helpers.tpl": _HELPERS.format(chart=name),
        "templates/map.yaml": "" if is_library else _MAP.format(name=name, chart=name, body=body),
        "values.yaml": yaml.safe_dump(
            {"text": "of the part", "exports": {"data": {"imported": f"from {name}"}}, "deep": {"imported": 5}}
        ),
    }
    return chart_archive(name, "0.1.0", files, type="library" if is_library else "application")


def _vendored(choose: random.Random, name: str) -> dict[str, str | bytes]:
    """A chart in charts/, as an archive or a folder."""
    archive = _sub_chart(choose, name, choose.random() < 0.25)
    if choose.random() < 0.4:
        return {f"charts/{name}-0.1.0.tgz": archive}
    return {f"charts/{path}": data for path, data in files_of(archive).items()}


def _dependencies(
    choose: random.Random, name: str, values: dict[str, Any], repository: str
) -> tuple[list[dict[str, Any]], dict[str, str | bytes]]:
    """Dependencies, and the files of charts/ but for what is fetched; adds to the values."""
    found, files = list[dict[str, Any]](), dict[str, str | bytes]()
    values["global"] = {"region": "north"} if choose.random() < 0.5 else {}
    for number in range(choose.choice([0, 1, 2, 3])):
        part = f"{name}-part{number}"
        one: dict[str, Any] = {"name": part, "version": choose.choice(["0.1.0", "^0.1", ">=0.0.1 <1"])}
        files |= _vendored(choose, part)
        if choose.random() < 0.4:
            one["condition"] = f"{part}.enabled,other.enabled"
            values[part] = {"enabled": choose.random() < 0.5}
        if choose.random() < 0.3:
            one["tags"] = ["front", "back"]
            values["tags"] = {"front": choose.random() < 0.5}
        if choose.random() < 0.4:
            one["alias"] = f"alias{number}"
        if choose.random() < 0.5:
            one["import-values"] = choose.choice([["data"], [{"child": "deep", "parent": "imported2"}], ["missing"]])
        found.append(one)
    if choose.random() < 0.4:
        chart = choose.choice(["cache", "queue"])
        found.append(
            {"name": chart, "version": choose.choice(["^1", "~1.1", "2.x", "1.0.0"]), "repository": repository}
        )
    return found, files


def _overrides(choose: random.Random, dependencies: list[dict[str, Any]]) -> dict[str, Any]:
    """The values of a request."""
    values: dict[str, Any] = {"nested": {"a": None, "over": [1]}} if choose.random() < 0.5 else {}
    if dependencies and choose.random() < 0.6:
        first = dependencies[0]
        values[first.get("alias", first["name"])] = {"text": "given {{ .Chart.Name }}", "enabled": True}
    if choose.random() < 0.3:
        values |= {"count": choose.choice([2, 2.5, "x", None]), "hooks": choose.choice([True, False, "no"])}
    return values
