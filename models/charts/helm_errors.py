"""Maps helm's failures to problems: an ordered table over what helm 3 and 4 print.

helm exits with 1 for every failure, so its text is the only source. The order matters: a chart's author can write any
text (a template that fails with "release: not found"), so template errors come first and are recognised by the start
of the line; and helm nests causes ("not found in index: improper constraint"). Messages contain no local paths and no
credentials.
"""

from __future__ import annotations

import re

from attrs import frozen

from models.children import Exit
from models.errors import Conflict, Failed, Invalid, NotFound, Problem, TimedOut, Unprocessable, Upstream

RELEASE_NOT_FOUND = "release-not-found"
ROLLED_BACK = "rolled-back"
"""The code of a change that failed and that helm itself has undone (`atomic`)."""
CLUSTER_UNREACHABLE, CLUSTER_DENIED = "cluster-unreachable", "cluster-denied"
"""The codes of one cause, whether a read of the server or a change of helm meets it."""
UNTRUSTED, UNRESOLVED = "its certificate is not trusted", "its name cannot be resolved"
NO_TLS, HANDSHAKE, NO_ANSWER = "it does not speak TLS", "the TLS handshake failed", "no answer"
NOT_ACCEPTED = "the credentials are not accepted"
_UNDONE = re.compile(r"Error: [A-Z]+ FAILED: release \S+ failed, and has been (?P<how>rolled back|uninstalled) due to ")
_MAX_MESSAGE_CHARACTERS = 1500
_MAX_MATCHED_CHARACTERS = 4000
"""A template can make helm print any text of any length."""
_MAX_MESSAGE_LINES = 20


@frozen
class ErrorKind:
    """One row of the table: its name, the problem it becomes, the texts that match, and a prefix for the message.

    With `quoted` False only the prefix is passed on, because helm's text contains addresses.
    """

    name: str
    problem: type[Problem]
    pattern: re.Pattern[str]
    prefix: str = ""
    quoted: bool = True
    subject: re.Pattern[str] | None = None
    """What of helm's text is kept if it is not quoted: the name of a webhook, an API group or an object."""
    retry_after: int | None = None

    def build(self, message: str) -> Problem:
        problem = self.problem(message, self.name)
        problem.retry_after = self.retry_after
        return problem


def _kind(
    name: str,
    problem: type[Problem],
    *texts: str,
    prefix: str = "",
    quoted: bool = True,
    subject: str = "",
    retry_after: int | None = None,
) -> ErrorKind:
    pattern = re.compile("|".join(texts), re.IGNORECASE | re.MULTILINE)
    kept = re.compile(subject, re.IGNORECASE) if subject else None
    return ErrorKind(name, problem, pattern, prefix, quoted, kept, retry_after)


_REQUEST = r'(?:Get|Post|Put|Patch|Delete) "https?:'


_TEMPLATE = _kind(
    "template-error",
    Unprocessable,
    r"\A[^\s:]+:\d+(?::\d+)?(?:: |\n\s+)(?:executing|function|unexpected|undefined|unclosed|bad|unterminated)",
    r"\Atemplate: ",
    r"\Aexecution error at \(",
    r"\Aparse error (?:at \(|in )",
    r"\AYAML parse error on",
    r"\Aerror (?:calling|converting YAML to JSON: yaml: )",
    r"\A(?:cannot|failed to) (?:parse|render|execute) template",
    prefix="the templates cannot be rendered: ",
)

_BAD_VALUES = _kind(
    "bad-values", Unprocessable, r"\Avalues don't meet the specifications of the schema",
    prefix="the values do not fit the chart: ",
)  # fmt: skip
_QUOTED_VALUE = re.compile(
    r"^([ \t]*- at '(?:[^'\\]|\\.)*': )'[^'\\]*(?:\\.[^'\\]*)*"
    r"(?:' (?P<what>does not match pattern|is not valid [^:\n]*)(?:: .*)?|\\?\Z)",
    re.MULTILINE,
)
"""A value in a finding of a schema, perhaps cut off. It may be a password, and the log has the message."""

KINDS = (
    _TEMPLATE,
    _BAD_VALUES,
    # faults of the cluster, by status: 502, 504, 409, 400
    _kind("cluster-connection-lost", Upstream, r"stream error: .*received from peer", r"http2: client connection lost",
          rf"{_REQUEST}[^\n]*(?:GOAWAY|connection reset|broken pipe|unexpected EOF)",
          prefix="the connection to the cluster was lost", quoted=False),
    _kind("webhook-unavailable", Upstream, r"failed calling webhook", r"no endpoints available for service",
          prefix="a webhook of the cluster cannot be reached", quoted=False,
          subject=r'failed calling webhook "([^"\s]{1,253})"|no endpoints available for service "([^"\s]{1,253})"'),
    _kind("cluster-busy", Upstream, r"too many requests", prefix="the cluster is busy", quoted=False, retry_after=5),
    _kind("discovery-incomplete", Upstream, r"stale GroupVersion discovery",
          r"unable to retrieve the complete list of server APIs", r"could not get apiVersions",
          prefix="the cluster does not list all of its APIs", quoted=False,
          subject=r"(?:discovery(?: failed)?:|server APIs:|apiVersions[^:]*:[^:]*:)\s*([a-z0-9.-]+/v[a-z0-9]+)"),
    _kind("cluster-unavailable", Upstream, r"etcdserver: ", r"server is currently unable",
          prefix="the cluster is not available", quoted=False),
    _kind(CLUSTER_UNREACHABLE, Upstream, r"kubernetes cluster unreachable",
          prefix="the cluster cannot be reached", quoted=False),
    _kind("cluster-connection-lost", Upstream, r"error when reading response body",
          r'(?:Post|Put|Patch|Delete) "https?:[^\n]*\bEOF\b', prefix="the connection to the cluster was lost",
          quoted=False),
    _kind("timeout", TimedOut, r"unable to return a response in the time allotted", r"Client\.Timeout exceeded",
          r"context deadline exceeded", prefix="helm did not finish in time: "),
    _kind("object-not-owned", Conflict, r'no \S+ with the name "[^"]*" found',
          prefix="an object exists that the previous revision does not own", quoted=False,
          subject=r'no (\S{1,100} with the name "[^"]{0,253}") found'),
    _kind("conflict", Conflict, r"the object has been modified", r"cannot be imported", r"being terminated"),
    _kind("rejected-by-cluster", Invalid, r"admission webhook .* denied", r"exceeded quota",
          r"Too long: must have at most", prefix="the cluster refuses the chart's objects: "),
    _kind(CLUSTER_UNREACHABLE, Upstream,
          r"failed to download openapi: (?!context deadline)",
          r'unable to build kubernetes objects\b.*"https?://[^"\s]+": (?!context deadline)',
          prefix="the cluster cannot be reached", quoted=False),
    _kind(CLUSTER_DENIED, Upstream, r"is forbidden: User", r"asked for the client to provide credentials",
          r"Unauthorized\b", r"\Afailed to delete release: ",
          prefix="the cluster denies this: "),
    _kind("invalid-argument", Invalid, r"improper constraint", r"invalid release name", r"no name provided",
          r"chart name must", r"contains '/'", r"could not find protocol handler", r"invalid chart URL format",
          r"invalid (?:image )?reference", r'scheme ".*" not supported', r"non-absolute URLs should be",
          r"version mismatch", r"\Afailed to parse \S*: ", r"could not convert revision",
          r"unknown (?:shorthand )?flag",
          r"unknown command", r"invalid argument", r"more than one dependency with name or alias",
          r"only unpacked charts can be updated", r"cannot push directory", r"requires \d+ argument",
          r"accepts \d+ arg",
          r"expected at most .* arguments", r"must be .* or fewer characters",
          r"could not find template .* in chart", r"invalid label|label .* is invalid|user suplied labels contains"),
    _kind("repo-unreachable", Upstream, r"is not a valid chart repository or cannot be reached: Get ",
          prefix="the repository cannot be reached", quoted=False),
    _kind("repo-invalid", Invalid, r"is not a valid chart repository or cannot be reached",
          prefix="this is not a chart repository", quoted=False),
    _kind("conflict", Conflict, r"cannot re-?use a name that is still in use",
          r"already exists, please specify a different name", r"another operation .* is in progress",
          r"cannot be imported into the current release", r"because it is being terminated",
          r"conflict occurred while applying", r"the object has been modified", r"already exists\b"),
    _kind(RELEASE_NOT_FOUND, NotFound, r"release: not found", r"has no deployed releases",
          r"release has no \S+ version", r"no revision for release", r"release: already deleted|is already deleted"),
    _kind("repo-not-found", NotFound, r"\brepo .*not found", r"no repo named", r"no repositories (?:configured|found)",
          r"no repository definition for", r"no repositories to show"),
    _kind("chart-not-found", NotFound, r"not found in .* index", r"no chart (?:name|version) found",
          r"chart (?:.* )?not found in ",
          r"\Acould not find \S+: stat ", r": no such file\Z", r"\Adirectory \S+ not found",
          r"name unknown", r"manifest unknown", r"on source: .*: not found",
          r"could not locate a version matching", r"can't get a valid version", r"failed to fetch \S+ : 404",
          r'path ".*" not found', r"failed to download \S+ at version"),
    _kind("namespace-not-found", NotFound, r'namespaces ".*" not found'),
    _kind("bad-chart", Invalid, r"does not appear to be a gzipped archive", r"unable to load chart archive",
          r"\Aunexpected EOF", r"Chart\.yaml file is missing", r"no Chart\.yaml found",
          r"cannot load \S+\.(?:yaml|lock)",
          r"validation: ", r"larger than the maximum", r"illegally references parent",
          r"library charts are not installable", r"incompatible with Kubernetes", r"missing in charts/ directory",
          r"gzip: invalid", r"archive/tar: ", r"cannot unmarshal",
          prefix="the chart cannot be used: "),
    _kind("rejected-by-cluster", Invalid, r"is invalid: ", r"no matches for kind", r"error validating",
          r"typed patch object", r"admission webhook .* denied", r"is forbidden: ",
          r"unable to build kubernetes objects",
          r"unable to decode", r"field is immutable", r"cannot patch", r"resource name may not be empty",
          r"request (?:entity|is) too large", r"error parsing ", r"strict decoding error",
          r"failed to install CRD ", r"unable to convert unstructured object", r"cannot be handled as an? ",
          prefix="the cluster refuses the chart's objects: "),
    _kind("timeout", TimedOut, r"context deadline exceeded", r"timed out waiting", r"client rate limiter Wait",
          r"not ready\. status: InProgress", r"would exceed context deadline",
          prefix="helm did not finish in time: "),
    _kind("hook-failed", Unprocessable, r"(?:pre|post)-(?:install|upgrade|delete|rollback)\b.*fail",
          r"failed (?:pre|post)-(?:install|upgrade|delete|rollback)", r"BackoffLimitExceeded", r"pod \S+ failed",
          r"not ready\. status: Failed", prefix="a hook or workload of the chart failed: "),
    _kind("upstream-unreachable", Upstream, r"connection refused", r"no such host", r"x509",
          r"HTTP response to HTTPS client",
          r"failed to update the following repositories", r"unable to perform search", r"no cached repo",
          r"connection reset", r"i/o timeout", r"TLS handshake", r"network is unreachable", r"unexpected status code",
          r"\bEOF\b", r"etcdserver", r"server is currently unable|the server could not",
          prefix="a server that helm needs cannot be reached", quoted=False),
)  # fmt: skip
"""The first matching row counts."""

_UNKNOWN = ErrorKind("unknown", Failed, re.compile(""), "helm failed: ")

_ADDRESSED = (
    r'(?:Get|Post|Put|Patch|Delete) "https?://[^"]*"(?:: )?'
    r"|(?:dial|read|write) (?:tcp|udp) \S+(?: \S+->\S+| on \S+)?:? |lookup \S+ on \S+: "
    r"|\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}:[0-9]{1,5}\b"
)
"""Addresses of the API server, of webhooks and of etcd."""

_PATH = re.compile(r"(?P<pointer>- at '(?:[^'\\]|\\.)*')|(?<![\w:/.])/(?:[^\s/:\"'()]+/)+(?P<file>[^\s/:\"'()]*)")
"""A local path, of which the last part is kept; the JSON pointer of a schema's finding is none."""

_NOISE = re.compile(
    r"(?:time=\S+ )?level=|walk\.go:|\w+\.go:\d+:|WARNING|Warning:|Pulled:|Digest:|W\d{4} |I\d{4} |E\d{4} "
)
_PREFIX = re.compile(
    r"\A(?:(?:Error|INSTALLATION FAILED|UPGRADE FAILED|UNINSTALL FAILED|ROLLBACK FAILED|failed to render chart|"
    r"release name check failed|cluster reachability check failed|release \S+ failed[^:]*)\s*: )+",
    re.IGNORECASE,
)
_REASONS = (
    ("connection refused", "connection refused"), ("no such host", UNRESOLVED), ("x509", UNTRUSTED),
    ("does not exist", "the context does not exist"),
    ("error loading config", "the kubeconfig cannot be read"),
    ("provide credentials", NOT_ACCEPTED), ("unauthorized", NOT_ACCEPTED), ("i/o timeout", NO_ANSWER),
    ("deadline exceeded", NO_ANSWER), ("https client", NO_TLS), ("tls: ", HANDSHAKE),
)  # fmt: skip
_RESOLVER = re.compile(r"\blookup \S{1,253}(?: on \S{1,60})?: (?P<words>[A-Za-z][A-Za-z ]{2,60})")
"""Why the resolver of helm did not find a name."""


def kind_of(stderr: str, stdout: str = "") -> ErrorKind:
    """The row that matches helm's output. stdout names the cause when stderr only reports that helm failed."""
    text = _error_text(stderr)
    for kind in KINDS:
        if kind.pattern.search(text):
            if "no cached repo" in text and " : 404" in stdout:
                return next(other for other in KINDS if other.name == "chart-not-found")
            return kind
    return _UNKNOWN


def problem_from_output(stderr: str, stdout: str = "") -> Problem:
    """Converts a failure of helm to the problem that the caller gets."""
    kind = kind_of(stderr, stdout)
    if kind is _BAD_VALUES:  # before the text is cut: a value whose end is missing would not be found
        stderr = _QUOTED_VALUE.sub(lambda found: f"{found[1]}the value {found['what'] or '...'}", stderr)
    text = _error_text(stderr)
    if kind.quoted:
        return kind.build(clean(kind.prefix + text) if text else "helm failed without a message")
    if kind.subject is not None:
        match = kind.subject.search(text)
        kept = next(filter(None, match.groups()), "") if match else ""
        return kind.build(f"{kind.prefix}: {clean(kept)}" if kept else kind.prefix)
    reason = _reason(text)
    return kind.build(f"{kind.prefix}: {reason}" if reason else kind.prefix)


def _reason(text: str) -> str:
    """Why something could not be reached, without addresses; empty where that is not known."""
    if found := _RESOLVER.search(text):
        return unresolved(found["words"].strip())
    lower = text.lower()
    return next((reason for pattern, reason in _REASONS if pattern in lower), "")


def unresolved(words: str) -> str:
    """The reason with the resolver's words."""
    return f"{UNRESOLVED} ({words})"


def undone_by(stderr: str) -> str:
    """How helm has undone a failed change: `rolled back` or `uninstalled`; empty if it has not."""
    first = next((line for line in stderr.splitlines() if line.startswith("Error: ")), "")
    match = _UNDONE.match(first)
    return match["how"] if match else ""


def is_out_of_memory(stderr: str, exit: Exit) -> bool:
    """Whether helm itself ran out of memory. A template can only make helm exit with 1."""
    if exit.code == 1 or (exit.code == 0 and exit.signal is None):
        return False
    pattern = r"^(?:fatal error|runtime|panic): .*(?:memory|mmap|new OS thread|allocat|reserve)|cannot allocate memory|"
    pattern += r"^runtime/cgo: pthread_create failed"
    return re.search(pattern, stderr, re.MULTILINE) is not None


def clean(text: str) -> str:
    """helm's text without local paths and credentials, on one line of bounded length."""
    text = text[: 2 * _MAX_MATCHED_CHARACTERS]
    text = re.sub(r"Use --debug flag to render out invalid YAML|\(try 'helm repo update'\)\.?", "", text)
    text = re.sub(r", error found in #\d+ byte of .*", "", text)  # the rest quotes the object, which may be a Secret
    text = re.sub(r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://)[^/\s\"'@]*@", r"\1", text, flags=re.IGNORECASE)
    text = _PATH.sub(lambda found: found["pointer"] or found["file"], text)
    text = re.sub(_ADDRESSED, "", text, flags=re.IGNORECASE)
    lines = [line.strip() for line in text.splitlines() if line.strip()][:_MAX_MESSAGE_LINES]
    joined = re.sub(r"[\x00-\x1f\x7f]", " ", " ".join(lines))
    return joined if len(joined) <= _MAX_MESSAGE_CHARACTERS else joined[: _MAX_MESSAGE_CHARACTERS - 3] + "..."


def _error_text(stderr: str) -> str:
    """helm's error message: the text from the line `Error:` on, without log lines and prefixes."""
    lines = stderr.splitlines()
    begins = next((number for number, line in enumerate(lines) if line.startswith("Error: ")), None)
    if begins is None:
        kept = [line for line in lines if line.strip() and not _NOISE.match(line)]
    else:
        kept = [line for line in lines[begins:] if not _NOISE.match(line)]
    return _PREFIX.sub("", "\n".join(kept)[:_MAX_MATCHED_CHARACTERS]).strip()


_UNVERIFIED = (
    (
        "failed to load keyring",
        "helm cannot read the keyring of svc.fetch.keyring (it needs the format of gpg --export)",
    ),
    ("made by unknown entity", "no key in the keyring signed it"),
    ("made by revoked key", "the key that signed it is revoked"),
    ("key expired", "the key that signed it has expired"),
    ("signature expired", "its signature has expired"),
    ("invalid signature", "its signature does not match its provenance file"),
    ("sha256 sum does not match", "the archive differs from the signed one"),
    ("does not contain a SHA for a file named", "its provenance file is that of another archive"),
    ("signature block not found", "its provenance file has no signature"),
    ("no such file", "it has no provenance file"),
)


def verification_reason(output: str) -> str:
    """Why `helm verify` refused a chart."""
    return next((reason for text, reason in _UNVERIFIED if text in output), "its provenance file is not valid")
