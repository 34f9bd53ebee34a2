"""For a training machine without package registries: the speech engines of this machine as one archive.

    python pack_voices.py voices.txz                     here, where the engines are installed
    python pack_voices.py voices.txz flite espeak-ng     the same of these alone
    tar -xJf voices.txz -C FOLDER && . FOLDER/use.sh     there, before train_all.py

Festival's data go to /usr/share, because the program looks for them there only.

The archive holds the programs, their libraries (not libc's), their English voices, and, if all programs are
packed, the package bigvgan.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PROGRAMS = ("flite", "espeak-ng", "festival")
SYSTEM_LIBRARIES = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux")
ESPEAK_DATA = Path("/usr/lib/x86_64-linux-gnu/espeak-ng-data")
ESPEAK_PARTS = ("phondata", "phontab", "phonindex", "intonations", "en_dict", "lang/gmw", "voices/!v")
USE = """here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cp -r --update=none "$here"/system/* /
for program in flite espeak-ng festival; do
  [ -e "$here/bin/$program" ] || continue
  printf '#!/bin/sh\\nLD_LIBRARY_PATH=%s/lib exec %s/bin/%s "$@"\\n' \\
    "$here" "$here" $program > /usr/local/bin/$program
  chmod +x /usr/local/bin/$program
done
export PYTHONPATH=$PYTHONPATH:$here/site
"""


def libraries(program: Path) -> list[Path]:
    """Shared libraries that a program needs beside libc's."""
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    paths = [Path(line.split("=>")[1].split()[0]) for line in listed.splitlines() if "=> /" in line]
    return [path for path in paths if not path.name.startswith(SYSTEM_LIBRARIES)]


def copy(source: Path, target: Path) -> None:
    """A file or a folder, links followed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def gather(folder: Path, programs: tuple[str, ...] = PROGRAMS) -> None:
    """What these programs need into a folder."""
    for name in programs:
        found = shutil.which(name)
        if found is None:
            raise SystemExit(f"{name} is not installed: apt install flite espeak-ng festival")
        copy(Path(found), folder / "bin" / name)
        for library in libraries(Path(found)):
            copy(library, folder / "lib" / library.name)
    system = folder / "system"
    if "festival" in programs:
        copy(Path("/usr/share/festival"), system / "usr/share/festival")
    for part in ESPEAK_PARTS:
        copy(ESPEAK_DATA / part, system / ESPEAK_DATA.relative_to("/") / part)
    if programs == PROGRAMS:
        bigvgan = importlib.util.find_spec("bigvgan")
        if bigvgan is None or bigvgan.origin is None:
            raise SystemExit("bigvgan is not installed: pip install --no-deps bigvgan")
        copy(Path(bigvgan.origin).parent, folder / "site" / "bigvgan")
    (folder / "use.sh").write_text(USE)


def main() -> None:
    """Gather and pack."""
    if len(sys.argv) < 2 or not {*sys.argv[2:]} <= {*PROGRAMS}:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        gather(Path(folder), tuple(sys.argv[2:]) or PROGRAMS)
        with tarfile.open(sys.argv[1], "w:xz") as archive:
            archive.add(folder, arcname=".")
    print(f"{sys.argv[1]}: {Path(sys.argv[1]).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
