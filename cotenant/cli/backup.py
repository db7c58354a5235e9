"""``backup`` and ``restore``: what a home cannot lose, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.options import settings
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from cotenant.settings import Settings

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    @command(
        app,
        "backup",
        example="cotenant backup /mnt/backup/mac-01.tar.gz\ncotenant backup /mnt/backup/mac-01.tar.gz --overwrite",
    )
    def backup(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, .tar.gz.")],
        overwrite: Annotated[
            bool, typer.Option("--overwrite", help="Replace the file where it is there, once the new one is whole.")
        ] = False,
    ) -> OperationResult:
        """Journals, keys, modules, reports, the embedded store and server, in one file. The node may go on meanwhile."""
        from cotenant.fleet.backup import backup as write

        in_force = settings()
        manifest = write(in_force.home, file.expanduser(), overwrite=overwrite)
        return OperationResult(
            manifest | {"file": str(file)},
            messages=_not_in_it(in_force),
            view=lambda data: [f"{in_force.home} is in {data['file']} ({_count(data)}); keep it safe: it has keys"],
        )

    @command(app, "restore", example="COTENANT_HOME=/srv/cotenant cotenant restore /mnt/backup/mac-01.tar.gz")
    def restore(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `cotenant backup` made.")],
    ) -> OperationResult:
        """Put a backup back into an empty home. A home that has something is left as it is.

        What happened since the backup is not in it, so every certificate in it is stale until it is measured anew.
        """
        from cotenant.fleet.backup import restore as read

        home = settings().home
        manifest = read(file.expanduser(), home, _forewarn)
        data: dict[str, Any] = manifest | {"home": str(home)}
        return OperationResult(
            data,
            view=lambda shown: [
                f"the backup of {shown['made_at'][:16]} UTC is in {shown['home']} ({_count(shown)}); start it: cotenant up",
                "its certificates are stale; what measures each anew: cotenant protection certificates NODE",
            ],
        )


def _forewarn(manifest: dict[str, Any]) -> None:
    made = f"{manifest['made_at'][:16]} UTC"
    typer.echo(
        f"note: what happened after {made} is not in this backup: a certificate that was revoked since, a run that failed, a "
        "section that was set. So every certificate in it becomes stale, and each takes two passes in a row; the sections "
        "are those of then, so see whether they are the ones you want: cotenant protection show NODE",
        err=True,
    )


def _count(data: dict[str, Any]) -> str:
    many = len(data["files"])
    return "1 file" if many == 1 else f"{many} files"


def _not_in_it(in_force: Settings) -> list[str]:
    notes = []
    if in_force.store_url is not None and not in_force.store_url.startswith("sqlite"):
        notes.append("the store is a database of its own and is not in it: back it up with pg_dump")
    if in_force.server_database_url is not None:
        notes.append("the server's database is one of its own and is not in it: back it up with pg_dump")
    return notes
