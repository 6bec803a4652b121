"""For those who watch over the service."""

from importlib.metadata import version

from fastapi import APIRouter
from pydantic import BaseModel

from app.api.routing import ServicesOfProcess, problems

router = APIRouter(tags=["health"])

VERSION = version("tiroir")


class Alive(BaseModel):
    status: str = "ok"


class Version(BaseModel):
    version: str


@router.get("/livez")
async def livez() -> Alive:
    """Whether the process answers."""
    return Alive()


@router.get("/readyz", responses=problems())
async def readyz(services: ServicesOfProcess) -> Alive:
    """Whether the process and its database answer; else 503."""
    await services.health.require_database()
    return Alive()


@router.get("/version")
async def get_version() -> Version:
    """Which release this is."""
    return Version(version=VERSION)
