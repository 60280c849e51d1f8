"""The operations that change releases."""

from __future__ import annotations

from handlers.charts.operations import CHANGE_FAILS, Operation
from models.charts import asks
from models.charts.shapes import Release, TestResult
from supervisor.charts import changes

_INSTALL_FAILS = (*CHANGE_FAILS, 413)
_UPLOAD_FAILS = (*_INSTALL_FAILS, 415)

operations: list[Operation] = [
    Operation(
        "helm_install", "POST", "/releases", "Install a chart from a reference", asks.Install, changes.install, Release,
        status=201, mutating=True, needs="cluster", fails=_INSTALL_FAILS,
    ),
    Operation(
        None, "POST", "/releases/upload", "Install an uploaded chart", asks.InstallUpload, changes.install, Release,
        status=201, mutating=True, needs="cluster", fails=_UPLOAD_FAILS, name="helm_install_upload",
    ),
    Operation(
        "helm_upgrade", "PUT", "/releases/{name}", "Upgrade a release from a reference", asks.Upgrade, changes.upgrade,
        Release, mutating=True, needs="cluster", fails=_INSTALL_FAILS,
    ),
    Operation(
        None, "POST", "/releases/{name}/upgrade/upload", "Upgrade a release from an uploaded chart",
        asks.UpgradeUpload, changes.upgrade, Release, mutating=True, needs="cluster", fails=_UPLOAD_FAILS,
        name="helm_upgrade_upload",
    ),
    Operation(
        "helm_uninstall", "DELETE", "/releases/{name}", "Uninstall a release", asks.Uninstall, changes.uninstall, None,
        status=204, mutating=True, needs="cluster", fails=CHANGE_FAILS,
    ),
    Operation(
        "helm_rollback", "POST", "/releases/{name}/rollback", "Go back to an earlier revision", asks.Rollback,
        changes.rollback, None, status=204, mutating=True, needs="cluster", fails=(*CHANGE_FAILS, 413),
    ),
    Operation(
        "helm_test", "POST", "/releases/{name}/test", "Run the tests of a release; 200 also where some fail", asks.Test,
        changes.test, list[TestResult], mutating=True, needs="cluster", fails=CHANGE_FAILS,
    ),
]  # fmt: skip
