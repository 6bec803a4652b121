"""Builds the application."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypedDict

from fastapi import FastAPI

from app.api.application import build
from app.runtime import Services, process
from app.settings import Settings


class State(TypedDict):
    services: Services


def create_app(settings: Settings | None = None) -> FastAPI:
    """An application that opens the database when its lifespan starts, not before."""
    chosen = settings or Settings()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[State]:
        async with process(chosen) as opened:
            if not chosen.run_operations:
                yield {"services": opened.services}
                return
            async with opened.working():
                yield {"services": opened.services}

    return build(chosen, lifespan)
