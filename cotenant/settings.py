"""What an operator may set: where things are, and every limit of the command line and of `cotenant up`.

Each field is read from the environment as ``COTENANT_`` and its name in capitals (``COTENANT_HOME``,
``COTENANT_STORE_URL``, ``COTENANT_NODE``, …), else from the home's ``fleet.json``, which `cotenant node join` and `cotenant
service install` write. Units stand in the names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from policies.json_text import parse_json
from policies.refusal import Refused

__all__ = ["ENV_PREFIX", "FLEET_FILE", "KEPT", "SYSTEM_HOME", "Settings", "default_home", "joined"]

ENV_PREFIX = "COTENANT_"
SYSTEM_HOME = Path("/var/lib/cotenant")
FLEET_FILE = "fleet.json"
# Of a joined node the first five; of the server's machine all but the second.
KEPT = (
    "node",
    "prefect_api_url",
    "prefect_auth_string",
    "store_url",
    "worker_query_s",
    "server_host",
    "server_port",
    "server_database_url",
    "events_kept_days",
)


def default_home(*, system_service: bool = False) -> Path:
    """The user's data directory on this platform, or the system's for a system service."""
    if system_service:
        return SYSTEM_HOME
    import platformdirs

    return Path(platformdirs.user_data_dir("cotenant", appauthor=False))


def joined(values: Mapping[str, object]) -> dict[str, object]:
    """What `cotenant node join` or `cotenant service install` wrote into the home that these values name.

    Raises:
        Refused: the file is there and cannot be read: a node that forgot its fleet would wait for runs for ever.
    """
    system = str(values.get("system_service", "")).lower() in ("1", "true", "yes", "on")
    home = Path(str(values.get("home") or default_home(system_service=system))).expanduser()
    try:
        raw = parse_json((home / FLEET_FILE).read_text())
        return {name: raw[name] for name in KEPT if raw.get(name) is not None}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise Refused(
            "SETTINGS_BAD",
            str(home / FLEET_FILE),
            str(error),
            "join the fleet again: cotenant node join NAME --server URL",
        ) from error


class Settings(BaseModel):
    """Typed settings. ``Settings.from_env()`` reads them, a command line option overrides."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Field(
        default_factory=default_home,
        description="folder of nodes, store, reports and the embedded Prefect server; by default the user's data folder",
    )
    system_service: bool = Field(
        default=False,
        description=f"run as a system service: the default home is then {SYSTEM_HOME}, as a service account has no home",
    )
    node: str = Field(
        default="local",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="name of this machine's node where none is given; it names folders and a work queue, hence the pattern",
    )
    owners_dir: Path = Field(
        default=Path("/run/cotenant"),
        description="where a system service has the sockets that it serves its owners on; asked where the home has no such node",
    )
    store_url: str | None = Field(
        default=None, repr=False, description="SQLAlchemy URL of the store; by default store.sqlite in the home"
    )
    prefect_api_url: str | None = Field(
        default=None,
        description="the Prefect server's API, where it is not the embedded one that `cotenant up` starts on loopback",
    )
    prefect_auth_string: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^[^:\s]+:\S+$",
        description="USER:PASSWORD that the Prefect server asks for; `cotenant up` starts the embedded one with it",
    )
    server_host: str = Field(
        default="127.0.0.1",
        pattern=r"^(127\.0\.0\.1|0\.0\.0\.0)$",
        description="address that the embedded server listens on: 127.0.0.1, or 0.0.0.0 for a fleet, which needs an auth string",
    )
    server_database_url: str | None = Field(
        default=None,
        repr=False,
        description="SQLAlchemy URL of the embedded server's database, postgresql+asyncpg://… for a fleet; by default SQLite",
    )
    server_port: int = Field(
        default=4200,
        ge=1,
        le=65535,
        description="port that the embedded server takes at its first start where it is free; it keeps what it took",
    )

    worker_query_s: float = Field(
        default=2.0,
        ge=1.0,
        le=3600.0,
        description="seconds between a worker's questions to the server for runs; longer where hundreds of nodes ask one server",
    )
    events_kept_days: int = Field(
        default=7,
        ge=1,
        le=3650,
        description="days for which the embedded server keeps events, of which every journal entry is one",
    )

    server_start_s: float = Field(
        default=400.0, gt=0, description="seconds a Prefect server may take to answer; its first start makes a database"
    )
    agent_start_s: float = Field(
        default=120.0, gt=0, description="seconds an agent may take to answer; it opens its journal and adopts attempts"
    )
    worker_start_s: float = Field(
        default=240.0,
        gt=0,
        description="seconds a worker may take to start; importing Prefect takes some on a busy machine",
    )
    stop_s: float = Field(
        default=40.0,
        gt=0,
        description="seconds a piece has to end after SIGTERM before SIGKILL; runners get their grace in it",
    )
    restart_base_s: float = Field(default=1.0, gt=0, description="seconds before a piece that died is started again")
    restart_max_s: float = Field(
        default=60.0,
        gt=0,
        description="longest such wait: it doubles with each death, so that a broken piece burns no core",
    )
    steady_s: float = Field(
        default=120.0,
        gt=0,
        description="seconds a piece must have lived for its next death to count as the first again",
    )
    supervise_every_s: float = Field(
        default=1.0, gt=0, description="seconds between looks at the pieces: a death is seen and said within it"
    )
    watch_every_s: float = Field(
        default=2.0,
        gt=0,
        description="seconds between questions to the agent while a run is watched; the agent ticks at 2 s",
    )
    flow_start_s: float = Field(
        default=600.0,
        gt=0,
        description="seconds a submitted run may take to reach the agent before its watcher gives up: its process has idle "
        "priority, and on a busy machine that takes minutes",
    )

    @field_validator("home")
    @classmethod
    def _absolute(cls, home: Path) -> Path:
        return Path(os.path.abspath(home.expanduser()))

    @field_validator("prefect_api_url")
    @classmethod
    def _api(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if not url.startswith(("http://", "https://")):
            raise ValueError("is no http:// or https:// address")
        return url.rstrip("/")

    @property
    def store(self) -> str:
        """SQLAlchemy URL of the store in use."""
        return self.store_url or f"sqlite:///{self.home / 'store.sqlite'}"

    @property
    def api_url(self) -> str | None:
        """The Prefect API in use: the one that is set, else the embedded server's; None before its first start."""
        if self.prefect_api_url is not None:
            return self.prefect_api_url
        try:
            port = int(parse_json((self.home / "prefect" / "server.json").read_text())["port"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None
        return f"http://127.0.0.1:{port}/api"

    @property
    def reports(self) -> Path:
        return self.home / "reports"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
        """Settings from the environment; an override that is None does not count.

        Raises:
            Refused: a value that cannot be used, by its variable's name.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, object] = {
            name: environ[key] for name in cls.model_fields if (key := ENV_PREFIX + name.upper()) in environ
        }
        values.update({name: value for name, value in overrides.items() if value is not None})
        values = joined(values) | values
        try:
            found = cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            raise Refused(
                "SETTINGS_BAD",
                # A field that is not shown holds a password.
                f"{ENV_PREFIX}{name.upper()}={first['input'] if cls.model_fields[name].repr else '…'}",
                str(first["msg"]).removeprefix("Value error, "),
                f"set it right or leave it out: {cls.model_fields[name].description}",
            ) from error
        if found.system_service and "home" not in values:
            return found.model_copy(update={"home": SYSTEM_HOME})
        return found
