"""Settings: environment variables TIROIR_*, or the same names in a .env file. docs/settings.md explains each."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Self

from platformdirs import user_data_path
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")
_LEAST_ANALYSIS_MEMORY = 128


def default_data_dir() -> Path:
    """/var/lib/tiroir for root, whose home other accounts can't enter; else the user's data directory."""
    return Path("/var/lib/tiroir") if os.geteuid() == 0 else user_data_path("tiroir")


def default_analysis_memory() -> int:
    """A quarter of the megabytes that the machine has, or the container that we are in: two may run at once."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):  # there is none, or it says "max"
        limits.append(int(_CONTAINER_MEMORY.read_text()))
    return max(_LEAST_ANALYSIS_MEMORY, min(limits) // 4_000_000)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="TIROIR_",
        env_file=".env",
        env_ignore_empty=True,  # a compose file hands over variables that nobody set as empty
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,  # the database URL holds a password
    )

    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="The port to listen on.")
    workers: int = Field(default=1, ge=1, le=64, description="Serving processes.")
    database_url: SecretStr | None = Field(
        default=None, description="A PostgreSQL of your own, 14 or newer. Without it an embedded server is started."
    )
    pooler_url: SecretStr | None = Field(
        default=None,
        description="A pooler in transaction mode (pgbouncer) in front of that PostgreSQL, for requests.",
    )
    data_dir: Path = Field(
        default_factory=default_data_dir, description="Where the embedded PostgreSQL keeps its data."
    )
    pool_min_size: int = Field(default=2, ge=1, le=100, description="Database connections held open by each process.")
    pool_max_size: int = Field(default=8, ge=1, le=100, description="Database connections of each process at most.")
    pool_timeout: float = Field(
        default=5.0, gt=0, le=300, description="Seconds that a request waits for a connection, then 503."
    )
    connect_timeout: int = Field(default=10, ge=2, le=300, description="Seconds that connecting may take.")
    statement_timeout: float = Field(
        default=30.0, gt=0, le=3600, description="Seconds that one statement may take, then 503."
    )
    lock_timeout: float = Field(
        default=10.0, gt=0, le=3600, description="Seconds that a statement waits for a lock, then 503."
    )
    run_operations: bool = Field(
        default=True, description="Whether serving processes run operations; if not, `tiroir worker` does."
    )
    operation_statement_timeout: float = Field(
        default=21_600.0, gt=0, le=604_800, description="Seconds that one statement of an operation may take."
    )
    analysis_memory: int = Field(
        default_factory=default_analysis_memory,
        ge=_LEAST_ANALYSIS_MEMORY,
        description="Megabytes that one analysis may take; one that needs more is refused.",
    )
    layout_grace: float = Field(
        default=30.0, ge=0, le=86_400, description="Seconds that the old bands stay after a rebuild has switched."
    )
    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, description="The largest request body, in bytes; beyond it 413."
    )
    shutdown_timeout: int = Field(
        default=30, ge=1, le=3600, description="Seconds that running requests get to finish after a stop signal."
    )
    log_level: str = Field(
        default="info", pattern="^(critical|error|warning|info|debug)$", description="How much is logged."
    )

    @property
    def analysis_bytes(self) -> int:
        return self.analysis_memory * 1_000_000

    @model_validator(mode="after")
    def _pooler_has_a_database(self) -> Self:
        if self.pooler_url is not None and self.database_url is None:
            raise ValueError(
                "TIROIR_POOLER_URL needs TIROIR_DATABASE_URL: migrations and operations go round the pooler"
            )
        return self

    @field_validator("database_url", "pooler_url")
    @classmethod
    def _readable(cls, value: SecretStr | None) -> SecretStr | None:
        """Refuses what libpq would complain of with the password, or a part of it, in its message."""
        if value is None:
            return None
        url = value.get_secret_value()
        _, _, authority = url.partition("?")[0].partition("://")
        userinfo, _, _ = authority.rpartition("@")
        if re.search(r"[@/\s]|%(?![0-9a-fA-F]{2})", userinfo):
            raise ValueError("percent-encode the characters @ / % and space of the user name and the password")
        try:
            conninfo_to_dict(url)
        except ProgrammingError:
            raise ValueError(
                "not a connection string that libpq understands: postgresql://user:password@host:5432/database"
            ) from None
        return value
