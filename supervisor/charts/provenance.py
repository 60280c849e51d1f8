"""Whether a chart is signed by whom the operator trusts: helm looks, at local files and with the operator's keyring."""

from __future__ import annotations

from pathlib import Path

from models.charts.archive import ChartArchive
from models.errors import Invalid
from supervisor.charts.helm.runner import Bounds
from supervisor.charts.helm.slots import Helm

_TAKES = 30.0


def check_keyring(keyring: Path | None) -> Path:
    """The operator's keyring. Raises `Invalid` where none is configured, or it is not there."""
    if keyring is None:
        raise Invalid("verify needs a keyring that the operator has configured (svc.fetch.keyring)")
    if not keyring.is_file():
        raise Invalid("verify: the keyring of svc.fetch.keyring is not there")
    return keyring.absolute()


async def prove(helm: Helm, chart: ChartArchive, keyring: Path, folder: Path) -> None:
    """Holds a chart against the provenance beside it. `folder` is helm's own, empty.

    Raises `Invalid` where it is not signed by anybody in the keyring, or is not what was signed.
    """
    arguments = ["verify", f"--keyring={keyring}", "--", str(chart.path)]
    output = await helm.run(arguments, folder, Bounds(_TAKES, f"{_TAKES:g} s"))
    if not output.ok:
        raise Invalid(f"the chart cannot be verified: {_reason(output.stderr)}")


def _reason(told: str) -> str:
    words = (
        ("made by unknown entity", "it is signed by nobody whom the keyring has"),
        ("sha256 sum does not match", "it is not what was signed"),
        ("no such file", "there is no provenance beside it"),
    )
    return next((ours for theirs, ours in words if theirs in told), "its provenance is not good")
