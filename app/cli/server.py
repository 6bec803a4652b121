"""Runs the service in this process and, with several workers, in those that it starts."""

import asyncio
import logging
import os
import signal
import sys
from logging.config import dictConfig
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any, NoReturn

import uvicorn
from fastapi import FastAPI

from app.cli.http_protocol import HttpProtocol
from app.main import create_app
from app.postgres.migrate import migrate
from app.runtime import database, process
from app.settings import Settings

_log = logging.getLogger(__name__)


def log_configuration(settings: Settings) -> dict[str, Any]:
    """Everything to standard error, a line an event."""
    level = settings.log_level.upper()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request": {"()": "asgi_correlation_id.CorrelationIdFilter", "default_value": "-"}},
        "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(correlation_id)s %(message)s"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["request"]}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "app": {"level": level},
            # It warns of each pipeline and each statement that we break off ourselves.
            "psycopg": {"level": "ERROR"},
            "psycopg.pool": {"level": "WARNING"},
            # It tells of an outage by tracebacks; app.service.queue does in a line.
            "procrastinate": {"level": "CRITICAL"},
            "uvicorn": {"level": level},
            # uvicorn's access log writes whole URLs, with the texts and keys in them; app.api.gate writes routes.
            "uvicorn.access": {"level": "CRITICAL"},
        },
    }


def serve(settings: Settings) -> None:
    """Migrates, rehearses a start so that what is wrong is one TiroirError, and serves until a signal comes.

    The embedded server, if it is used, runs as long as this process or one of its workers does.
    """
    logs = log_configuration(settings)
    dictConfig(logs)
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGHUP, _hang_up)
    with database(settings) as conninfo:
        if settings.database_url is None:
            _log.info("embedded PostgreSQL, data in %s", settings.data_dir)
        migrate(conninfo, connect_timeout=settings.connect_timeout)
        asyncio.run(_rehearse(settings))
        uvicorn.run(
            "app.cli.server:create_followed_app",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            http=HttpProtocol,
            loop="auto",
            ws="none",
            log_config=logs,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=settings.shutdown_timeout,
        )


def work(settings: Settings) -> None:
    """Works on operations until a signal comes."""
    dictConfig(log_configuration(settings))
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGHUP, _hang_up)
    with database(settings) as conninfo:
        migrate(conninfo, connect_timeout=settings.connect_timeout)
        asyncio.run(_work(settings))


async def _work(settings: Settings) -> None:
    """A signal is an event here, so that what is under way is broken off in order."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with process(settings) as opened, opened.working():
        _log.info("working on operations")
        await stopped.wait()


def create_followed_app() -> FastAPI:
    """The application; in a worker it ends with the process that started it, which may be killed without a word."""
    if (parent := parent_process()) is not None:
        Thread(target=_end_after, args=(parent,), daemon=True).start()
    return create_app()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


async def _rehearse(settings: Settings) -> None:
    async with process(settings):
        pass


def _terminate(number: int, _: object) -> NoReturn:
    """An exception, so that whatever is open is closed; uvicorn takes the signal while it runs, then hands it on."""
    sys.exit(0 if number == signal.SIGTERM else 128 + number)


def _hang_up(number: int, frame: object) -> None:  # noqa: ARG001  a handler's arguments
    """The terminal was closed: a stop like any other."""
    signal.raise_signal(signal.SIGTERM)


def export(settings: dict[str, Any]) -> None:
    """Hands the command line's settings to the workers, which read the environment."""
    for name, value in settings.items():
        os.environ[f"TIROIR_{name.upper()}"] = str(value)
