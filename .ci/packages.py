"""`make dist` twice with equal bytes; then the package, in a fresh Debian 12 and 13, and the container image are tried.

    python .ci/packages.py [FOLDER]

FOLDER has the files of `make dist`; without it they are built. Needs root's rights, debootstrap and a mirror.
In a chroot there is no systemd: the unit is verified, the server is started by hand as its user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bare import mirror

ROOT = Path(__file__).resolve().parent.parent
RELEASES = ("bookworm", "trixie")

PACKAGE = """
export HOME=/tmp
find / -xdev -not -path '/proc/*' -not -path '/var/lib/dpkg/*' -not -path '/var/log/*' | sort > /tmp/before
dpkg --install /pilothouse.deb
pilothouse --version
test "$(stat -c %U:%a /var/lib/pilothouse)" = pilothouse:700
systemctl is-enabled pilothouse.service
systemd-analyze verify /usr/lib/systemd/system/pilothouse.service
echo '# mine' >> /etc/pilothouse/pilothouse.yaml
dpkg --install /pilothouse.deb
grep -qx '# mine' /etc/pilothouse/pilothouse.yaml
setpriv --reuid pilothouse --regid pilothouse --clear-groups env CACHE_DIRECTORY=/var/lib/pilothouse/cache \
    sh -ec 'mkdir -p $CACHE_DIRECTORY && cd /var/lib/pilothouse
    begin=$(date +%s)
    pilothouse --config /etc/pilothouse/pilothouse.yaml --data-dir /var/lib/pilothouse --port 18975 &
    until pilothouse ctl --data-dir /var/lib/pilothouse status hello; do sleep 0.2; done
    echo "from the start to the first status: $(($(date +%s) - begin)) s"
    kill -9 $!
    pilothouse --config /etc/pilothouse/pilothouse.yaml --data-dir /var/lib/pilothouse --port 18975 2> /tmp/second &
    until grep -q "adopted" /tmp/second; do sleep 0.2; done
    pilothouse ctl --data-dir /var/lib/pilothouse shutdown'
dpkg --purge pilothouse
find / -xdev -not -path '/proc/*' -not -path '/var/lib/dpkg/*' -not -path '/var/log/*' | sort > /tmp/after
sed -i -e '/^\\/tmp\\//d' -e '/^\\/etc\\/.*-$/d' -e '/^\\/run\\//d' /tmp/before /tmp/after
diff /tmp/before /tmp/after
! getent passwd pilothouse
"""


def run(*command: str | Path, **environ: str) -> None:
    """Runs a command. Raises `CalledProcessError` if it fails."""
    print("+", *command[:8], flush=True)
    subprocess.run([str(word) for word in command], check=True, env={**os.environ, **environ})


def build(folder: Path) -> Path:
    """Builds twice and compares the sums; returns the folder of the first."""
    for name in ("one", "two"):
        run(sys.executable, ROOT / "packing" / "dist.py", "--out", folder / name)
    sums = [(folder / name / "SHA256SUMS").read_text() for name in ("one", "two")]
    assert sums[0] == sums[1], "\n".join(sums)
    return folder / "one"


def try_package(dist: Path, folder: Path, release: str) -> None:
    """Installs the package in a fresh Debian, upgrades and purges it."""
    root = folder / release
    begin = time.monotonic()
    run("debootstrap", "--variant=minbase", "--include=systemd,procps", release, root, mirror())
    print(f"debootstrap: {time.monotonic() - begin:.0f} s")
    shutil.copy(next(dist.glob("*.deb")), root / "pilothouse.deb")
    run("unshare", "--mount", "--pid", "--fork", "chroot", root, "sh", "-euxc", f"mount -t proc proc /proc\n{PACKAGE}")


def try_image(dist: Path, folder: Path) -> None:
    """Unpacks the image and serves from it as its user, with a read-only root."""
    layout, root = folder / "layout", folder / "root"
    for place in (layout, root, folder / "data"):
        place.mkdir()
    run("tar", "-xf", next(dist.glob("*-oci.tar")), "-C", layout)

    def blob(digest: str) -> Path:
        return layout / "blobs" / digest.replace(":", "/")

    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads(blob(index["manifests"][0]["digest"]).read_text())
    config = json.loads(blob(manifest["config"]["digest"]).read_text())["config"]
    run("tar", "-xzf", blob(manifest["layers"][0]["digest"]), "-C", root)
    user = config["User"]
    os.chown(folder / "data", *map(int, user.split(":")))
    program, *checked = config["Entrypoint"][0], *config["Healthcheck"]["Test"][1:]
    script = f"""
        mount --bind "$0" "$0"; mount --bind /dev "$0/dev"; mount -o remount,ro,bind "$0"
        mount --bind "$0/../data" "$0/data"; mount -t tmpfs tmpfs "$0/tmp"; mount -t proc proc "$0/proc"
        ! touch "$0/file"
        env -i {" ".join(config["Env"])} SERVER_PORT=18976 \\
            "$(command -v chroot)" --userspec={user} "$0" {program} serve &
        server=$!
        until chroot --userspec={user} "$0" {" ".join(checked)}; do
            kill -0 $server; sleep 0.2
        done
        kill $server; wait $server"""
    run("unshare", "--mount", "sh", "-euc", script, root)


def main() -> int:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("debootstrap, and root's rights to run it, are missing")
        return 1
    with tempfile.TemporaryDirectory(prefix="packages-") as place:
        folder = Path(place)
        dist = Path(sys.argv[1]) if len(sys.argv) > 1 else build(folder)
        try_image(dist, folder)
        for release in RELEASES:
            try_package(dist, folder, release)
    print("the package and the image work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
