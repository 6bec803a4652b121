"""Builds the application."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
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
        async with process(chosen) as opened, opened.working() if chosen.run_operations else nullcontext():
            yield {"services": opened.services}

    return build(chosen, lifespan)
