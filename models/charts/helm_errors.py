"""What helm's failures mean: an ordered table over what helm 3 and 4 print, and the words in which it is passed on.

helm ends with 1 whatever went wrong, so its text is all there is. The order matters: what the author of a chart can
write (a template that fails with "release: not found") comes first and is known by how its line begins; and helm puts
causes within one another ("not found in index: improper constraint"). Details bear no paths of ours and no credentials.
"""

from __future__ import annotations

import re

from attrs import frozen

from models.errors import Conflict, Failed, Invalid, NotFound, Problem, TimedOut, Unprocessable, Upstream
from models.supervision.process import Exit

_LONGEST = 1500
_JUDGED = 4000
"""Characters of what helm says that are looked at: a template may make it say anything, of any length."""
_LINES = 20


@frozen
class Kind:
    """One row: a word for the kind, the problem it is, the texts that tell it, and what is said before helm's words.

    `quoted` False: only our own words are passed on, for helm's hold addresses of machines.
    """

    name: str
    problem: type[Problem]
    pattern: re.Pattern[str]
    words: str = ""
    quoted: bool = True


def _kind(name: str, problem: type[Problem], *texts: str, words: str = "", quoted: bool = True) -> Kind:
    return Kind(name, problem, re.compile("|".join(texts), re.IGNORECASE | re.MULTILINE), words, quoted)


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
    words="the templates cannot be rendered: ",
)

KINDS = (
    _TEMPLATE,
    _kind("bad-values", Unprocessable, r"\Avalues don't meet the specifications of the schema",
          words="the values do not fit the chart: "),
    _kind("cluster-unreachable", Upstream, r"kubernetes cluster unreachable",
          r"failed to download openapi: (?!context deadline)",
          r'unable to build kubernetes objects\b.*"https?://[^"\s]+": (?!context deadline)',
          words="the cluster cannot be reached", quoted=False),
    _kind("cluster-denied", Upstream, r"is forbidden: User", r"asked for the client to provide credentials",
          r"Unauthorized\b", r"\Afailed to delete release: ",
          words="the cluster does not let us do this: "),
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
          words="the repository cannot be reached", quoted=False),
    _kind("repo-invalid", Invalid, r"is not a valid chart repository or cannot be reached",
          words="this is not a chart repository", quoted=False),
    _kind("conflict", Conflict, r"cannot re-?use a name that is still in use",
          r"already exists, please specify a different name", r"another operation .* is in progress",
          r"cannot be imported into the current release", r"because it is being terminated",
          r"conflict occurred while applying", r"the object has been modified", r"already exists\b"),
    _kind("release-not-found", NotFound, r"release: not found", r"has no deployed releases",
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
          words="the chart cannot be used: "),
    _kind("rejected-by-cluster", Invalid, r"is invalid: ", r"no matches for kind", r"error validating",
          r"typed patch object", r"admission webhook .* denied", r"is forbidden: ",
          r"unable to build kubernetes objects",
          r"unable to decode", r"field is immutable", r"cannot patch", r"resource name may not be empty",
          r"request (?:entity|is) too large", r"error parsing ", r"strict decoding error",
          r"failed to install CRD ", r"unable to convert unstructured object", r"cannot be handled as an? ",
          words="the cluster refuses what the chart makes: "),
    _kind("timeout", TimedOut, r"context deadline exceeded", r"timed out waiting", r"client rate limiter Wait",
          r"not ready\. status: InProgress", r"would exceed context deadline",
          words="it was not done in time: "),
    _kind("hook-failed", Unprocessable, r"(?:pre|post)-(?:install|upgrade|delete|rollback)\b.*fail",
          r"failed (?:pre|post)-(?:install|upgrade|delete|rollback)", r"BackoffLimitExceeded", r"pod \S+ failed",
          r"not ready\. status: Failed", words="what the chart starts has failed: "),
    _kind("upstream-unreachable", Upstream, r"connection refused", r"no such host", r"x509",
          r"HTTP response to HTTPS client",
          r"failed to update the following repositories", r"unable to perform search", r"no cached repo",
          r"connection reset", r"i/o timeout", r"TLS handshake", r"network is unreachable", r"unexpected status code",
          r"\bEOF\b", r"etcdserver", r"server is currently unable|the server could not",
          words="somebody that helm asked cannot be reached", quoted=False),
)  # fmt: skip
"""The first that fits counts."""

_UNKNOWN = Kind("unknown", Failed, re.compile(""), "helm failed: ")

_NOISE = re.compile(
    r"(?:time=\S+ )?level=|walk\.go:|\w+\.go:\d+:|WARNING|Warning:|Pulled:|Digest:|W\d{4} |I\d{4} |E\d{4} "
)
_PREFIX = re.compile(
    r"\A(?:(?:Error|INSTALLATION FAILED|UPGRADE FAILED|UNINSTALL FAILED|ROLLBACK FAILED|failed to render chart|"
    r"release name check failed|cluster reachability check failed|release \S+ failed[^:]*)\s*: )+",
    re.IGNORECASE,
)
_REASONS = (
    ("connection refused", "connection refused"), ("no such host", "its name is not known"),
    ("x509", "its certificate is not trusted"), ("does not exist", "the context does not exist"),
    ("error loading config", "the kubeconfig cannot be read"), ("provide credentials", "it does not know us"),
    ("i/o timeout", "no answer"), ("deadline exceeded", "no answer"), ("https client", "it does not speak TLS"),
)  # fmt: skip


def kind_of(stderr: str, stdout: str = "") -> Kind:
    """The row of the table for what helm has printed. stdout tells the cause where stderr only says that it failed."""
    said = _said(stderr)
    for kind in KINDS:
        if kind.pattern.search(said):
            if "no cached repo" in said and " : 404" in stdout:
                return next(other for other in KINDS if other.name == "chart-not-found")
            return kind
    return _UNKNOWN


def problem(stderr: str, stdout: str = "") -> Problem:
    """A failure of helm as what is told to whoever asked."""
    kind = kind_of(stderr, stdout)
    if kind.quoted:
        words = _said(stderr)
        return kind.problem(clean(kind.words + words) if words else "helm failed and did not say why")
    lower = _said(stderr).lower()
    reason = next((words for text, words in _REASONS if text in lower), "")
    return kind.problem(f"{kind.words}: {reason}" if reason else kind.words)


def is_out_of_memory(stderr: str, exit: Exit) -> bool:
    """Whether helm itself broke for want of memory; a template can only make it end with 1."""
    if exit.code == 1 or (exit.code == 0 and exit.signal is None):
        return False
    words = r"^(?:fatal error|runtime|panic): .*(?:memory|mmap|new OS thread|allocat|reserve)|cannot allocate memory"
    return re.search(words, stderr, re.MULTILINE) is not None


def clean(text: str) -> str:
    """helm's words without our paths, without credentials in URLs, on one line of a bearable length."""
    text = text[: 2 * _JUDGED]
    text = re.sub(r"Use --debug flag to render out invalid YAML|\(try 'helm repo update'\)\.?", "", text)
    text = re.sub(r", error found in #\d+ byte of .*", "", text)  # pieces of the object, which may be a Secret
    text = re.sub(r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://)[^/\s\"'@]*@", r"\1", text, flags=re.IGNORECASE)
    text = re.sub(r"(?<![\w:/.])/(?:[^\s/:\"'()]+/)+([^\s/:\"'()]*)", r"\1", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()][:_LINES]
    joined = re.sub(r"[\x00-\x1f\x7f]", " ", " ".join(lines))
    return joined if len(joined) <= _LONGEST else joined[: _LONGEST - 3] + "..."


def _said(stderr: str) -> str:
    """What helm says went wrong: from its line `Error:` on, without its log and its prefixes."""
    lines = stderr.splitlines()
    begins = next((number for number, line in enumerate(lines) if line.startswith("Error: ")), None)
    if begins is None:
        kept = [line for line in lines if line.strip() and not _NOISE.match(line)]
    else:
        kept = [line for line in lines[begins:] if not _NOISE.match(line)]
    return _PREFIX.sub("", "\n".join(kept)[:_JUDGED]).strip()
