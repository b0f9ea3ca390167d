"""The demo and the quick tests in minimal installations of Debian: `make test-all PART=debian`, as root.

    python tests/debian.py FOLDER RELEASE ... [--bind PATH] [--mirror URL]

debootstrap installs each release in FOLDER/RELEASE, once, with what `make` needs and nothing else; a clone of the last
commit is built and tested there. pip's settings of this machine hold there too; --bind makes a folder that they name
visible there. Everything that is mounted goes with the process (mount namespace). The last lines are a table of
results.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = "python3,python3-venv,python3-dev,make,g++,ca-certificates,git"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
HOSTS = Path("/etc/hosts")  # so that the name of this machine has an address there too
PIP = (Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf")


def install(release: str, folder: Path, mirror: str) -> None:
    """Install the release, unless it is there."""
    if folder.exists():
        return
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    print(f"== Installing Debian {release} in {folder}", flush=True)
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", release, unfinished, mirror],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    unfinished.rename(folder)


def enter(folder: Path, command: str, binds: list[Path]) -> subprocess.CompletedProcess[bytes]:
    """Run a command of the shell in the installation, with /proc, /dev and shared memory, in the clone."""
    mounts = [
        f"mount --rbind /dev {folder}/dev",
        f"mount -t proc proc {folder}/proc",
        f"mount --rbind /sys {folder}/sys",
    ]
    for path in [*binds, *(path for path in (CERTIFICATES, HOSTS, *PIP) if path.exists())]:
        there = folder / path.relative_to("/")
        if path.is_dir():
            there.mkdir(parents=True, exist_ok=True)
        else:
            there.parent.mkdir(parents=True, exist_ok=True)
            there.touch()
        mounts.append(f"mount --bind {path} {there}")
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    environment = {**kept, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    script = f"set -e; {'; '.join(mounts)}; exec chroot {folder} sh -c 'cd /rankwise && {command}'"
    return subprocess.run(["unshare", "--mount", "sh", "-c", script], env=environment, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="The demo and the quick tests in minimal installations of Debian.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("releases", nargs="+", metavar="RELEASE", help="bookworm, trixie, ...")
    parser.add_argument("--bind", type=Path, action="append", default=[], help="a folder of this machine to show there")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian")
    options = parser.parse_args()
    if os.geteuid() or not shutil.which("debootstrap"):
        print("not tested: make test-all PART=debian needs root and debootstrap: apt install debootstrap")
        return 1
    table, failed = list[str](), False
    for release in options.releases:
        folder = options.folder.resolve() / release
        folder.parent.mkdir(parents=True, exist_ok=True)
        install(release, folder, options.mirror)
        clone = folder / "rankwise"
        if not clone.exists():
            subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
        subprocess.run(["git", "-C", clone, "fetch", "--quiet", "origin", "HEAD"], check=True)
        subprocess.run(["git", "-C", clone, "checkout", "--quiet", "--detach", "FETCH_HEAD"], check=True)
        found = subprocess.run(["chroot", folder, "python3", "-V"], capture_output=True, text=True, check=True)
        python = found.stdout.split()[1]
        for target in ("demo", "test-all PART=python"):
            print(f"== Debian {release}, Python {python}: make {target}", flush=True)
            begun = time.monotonic()
            passed = enter(folder, f"make {target}", options.bind).returncode == 0
            failed |= not passed
            result = "passed" if passed else "FAILED"
            table.append(
                f"{release:<10} Python {python:<8} make {target:<20} {time.monotonic() - begun:5.0f} s  {result}"
            )
    print(*table, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
