"""From what a person types for RUN to the places where the run is found. Used by every command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ddl import config
from ddl.config import StoreSettings
from ddl.errors import ConfigError, UnknownRunError
from ddl.protocol.address import check_redis_url, parse_address, typed_address

if TYPE_CHECKING:
    from ddl.protocol.records import RunEntry
    from ddl.registry.reader import RedisReader
    from ddl.store.base import Store
    from ddl.store.retry import Retried

REDIS_VARIABLE: Final = "DDL_REDIS"
STORE_VARIABLE: Final = "DDL_STORE"

PATIENCE_S: Final = 10.0
"""How long a command tries to reach a store that does not answer."""

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A name, a run.toml, redis://HOST:PORT/DB?run=NAME, s3://BUCKET/PREFIX/NAME "
        "or file:///DIR/NAME.",
        show_default=False,
    ),
]
RedisOption = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        help=f"Redis of the run; else {REDIS_VARIABLE}, else what RUN says.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help=f"Object store of the run; else {STORE_VARIABLE}, else what RUN or Redis says.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True, repr=False)
class Place:
    """Where one run is found.

    Attributes:
        run: its name.
        redis_url: its control plane; None when nothing named one. May hold a password.
        store_url: its object store; None when only Redis can tell.
        store: how that store is spoken to.
        task_file: the task that a settings file names, found beside it; None without such a file.
    """

    run: str
    redis_url: str | None
    store_url: str | None
    store: StoreSettings
    task_file: Path | None = None

    @property
    def typed(self) -> str:
        """The run as a person would type it into another command, in the same shell."""
        if self.redis_url is None or self.redis_url == os.environ.get(REDIS_VARIABLE):
            return self.run
        return typed_address(self.redis_url, self.run)

    def reader(self) -> RedisReader:
        """The run's control plane, for reading. Raises: ConfigError when no Redis is named."""
        from ddl.registry.reader import RedisReader

        if self.redis_url is None:
            raise ConfigError(
                f"no Redis is named for the run {self.run!r}",
                hint=f"Give --redis redis://HOST:PORT/DB, or set {REDIS_VARIABLE}",
            )
        return RedisReader(self.redis_url, self.run)

    def entry(self) -> RunEntry | None:
        """The run as its Redis knows it. Raises: ConfigError when no Redis is named; RegistryError."""
        registry = self.reader()
        try:
            return registry.read_entry()
        finally:
            registry.close()

    def open_store(self) -> Store:
        """The run's object store. Raises: ConfigError when none is named; StoreError."""
        if self.store_url is None:
            raise ConfigError(
                f"no object store is named for the run {self.run!r}",
                hint=f"Give --store file:///DIR or s3://BUCKET/PREFIX, or set {STORE_VARIABLE}",
            )
        return open_store(self.store_url, self.store)

    def find_store(self, *, must_exist: bool = True) -> Store:
        """The store that was named, else the one that Redis knows the run by.

        `must_exist` refuses a directory that is not there, instead of showing an empty store.
        Raises: ConfigError when neither is named; UnknownRunError; RegistryError, StoreError.
        """
        if self.store_url is not None:
            return open_store(self.store_url, self.store, must_exist=must_exist)
        entry = self.entry()
        if entry is None:
            raise UnknownRunError(
                f"Redis does not know the run {self.run!r}",
                hint="Give the store instead, as file:///DIR/NAME or s3://BUCKET/PREFIX/NAME",
            )
        return open_store(entry.store_url, entry.run.settings.store, must_exist=must_exist)


def open_store(url: str, settings: StoreSettings, *, must_exist: bool = True) -> Store:
    """A store for somebody who waits at the keyboard: less patient than a run, and says so."""
    from ddl.store.open_url import open_url
    from ddl.store.retry import RetryPolicy

    return open_url(
        url,
        settings=settings,
        policy=RetryPolicy(patience_s=PATIENCE_S),
        on_retry=_say_retry,
        must_exist=must_exist,
    )


def _say_retry(retried: Retried) -> None:
    if retried.attempt == 1:
        typer.echo(f"cannot {retried.what}: {retried.error}; trying again", err=True)


def resolve(
    text: str,
    *,
    redis: str | None = None,
    store: str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Place:
    """Find a run: what flags say stands above the environment, and that above what RUN says.

    An address that names a place itself is meant: the environment only fills what it leaves open.
    `flags` are settings, dotted key -> text.
    Raises: ConfigError (AddressError among them), whose message never shows a password.
    """
    environment = os.environ if environment is None else environment
    address = parse_address(text)
    redis_url = redis or address.redis_url
    store_url = store or address.store_url
    if address.toml_path is not None:
        settings = config.load(address.toml_path, environment=environment, flags=flags).settings
        return Place(
            run=settings.run.name,
            redis_url=check_redis_url(redis_url or settings.redis.url),
            store_url=store_url or settings.store.url,
            store=settings.store,
            task_file=address.toml_path.parent / settings.task.file,
        )
    settings = config.load(environment=environment, flags=flags).settings
    assert address.run is not None, "only a settings file leaves the name open"
    redis_url = redis_url or environment.get(REDIS_VARIABLE)
    return Place(
        run=address.run,
        redis_url=check_redis_url(redis_url) if redis_url else None,
        store_url=store_url or environment.get(STORE_VARIABLE),
        store=settings.store,
    )
