"""An empty Prefect database at its newest schema, made once and copied, so that a server's first start is quick.

Making the schema takes a quarter of a minute of processor time; ``make setup`` does it ahead
(``python -m cotenant.fleet.template``). A home without a template at hand works as well: its server makes the schema itself.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import platformdirs

from cotenant.fleet.process import prefect_env

__all__ = ["make", "seed", "template"]

DATABASE = "prefect.db"
MAKE_WITHIN_S = 300.0


def template() -> Path:
    """Where the template of the installed Prefect's schema lies, or would lie."""
    from prefect import __version__

    return Path(platformdirs.user_cache_dir("cotenant", appauthor=False)) / f"prefect-{__version__}.sqlite"


def seed(prefect_home: Path) -> bool:
    """Give a Prefect home that has no database yet a copy of the template. Whether it did; never an error."""
    target, source = prefect_home / DATABASE, template()
    if target.exists() or not source.is_file():
        return False
    try:
        prefect_home.mkdir(parents=True, exist_ok=True, mode=0o700)
        _copy(source, target)
    except (OSError, sqlite3.Error):
        return False
    return True


def make() -> Path:
    """Make the template unless it is there.

    Raises:
        RuntimeError: Prefect could not make its schema; with its last words.
    """
    target = template()
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"],
            env=prefect_env(Path(folder)),
            capture_output=True,
            text=True,
            timeout=MAKE_WITHIN_S,
            check=False,
        )
        database = Path(folder) / "prefect" / DATABASE
        if made.returncode != 0 or not database.is_file():
            raise RuntimeError(f"prefect server database upgrade: {(made.stderr or made.stdout)[-500:]}")
        _copy(database, target)
    return target


def _copy(source: Path, target: Path) -> None:
    """Whole or not at all, whatever of the source still lies in its write-ahead log."""
    handle, draft = tempfile.mkstemp(prefix=target.name, dir=target.parent)
    os.close(handle)
    try:
        with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(draft)) as new:
            old.backup(new)
        os.replace(draft, target)
    except BaseException:
        os.unlink(draft)
        raise


if __name__ == "__main__":
    try:
        make()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        # The first start of a server makes its schema itself, only slower.
        print(f"no template of the server's database: {error}", file=sys.stderr)
