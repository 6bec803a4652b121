"""The application: routes, middleware and problems put together."""

from typing import Any

from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.types import Lifespan

from app.api import problems
from app.api.gate import BodyLimit, Gate
from app.api.routes import admin, analyses, collections, docs, documents, fingerprints, health, near_duplicates, streams
from app.settings import Settings

_DESCRIPTION = """
Finds near-duplicate documents: exactly, at any threshold.

A **near-duplicate** is a document whose fingerprint (a 63-bit SimHash) differs in at most *threshold* bits. Nothing
within the threshold is ever missed. How alike two texts must be to come within it is another matter: below 200 words
a changed word often moves more than three bits, and answers say so (`status`: `short`).
"""


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"]["schemas"] |= problems.schemas()
        return document


def build(settings: Settings, lifespan: Lifespan[FastAPI]) -> FastAPI:
    app = _Application(
        title="Tiroir",
        version=health.VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # the framework's own pages load their programs from elsewhere
        redoc_url=None,
        middleware=[
            Middleware(CorrelationIdMiddleware),
            Middleware(Gate, max_body_bytes=settings.max_body_bytes),
            # FastAPI's own max_body_size stands outside all middleware and answers in plain text.
            Middleware(BodyLimit, max_body_bytes=settings.max_body_bytes),
        ],
    )
    problems.install(app)
    app.include_router(health.router)
    # In the order in which they are asked for most: each router is tried until one takes the path.
    for router in (
        near_duplicates.router,
        documents.router,
        streams.router,
        fingerprints.router,
        analyses.router,
        collections.router,
        near_duplicates.across_collections,
        admin.router,
    ):
        app.include_router(router)
    docs.install(app)
    return app
