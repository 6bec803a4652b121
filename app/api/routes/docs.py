"""The interface, to read and to try, at /docs: with files of our own, since many of our users' networks are closed."""

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

_FILES = "/docs/files"


def install(app: FastAPI) -> None:
    app.router.routes.append(Route("/", RedirectResponse("/docs"), include_in_schema=False))
    app.mount(_FILES, StaticFiles(packages=[("fastapi_offline", "static")]))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:  # pyright: ignore[reportUnusedFunction]  its decorator keeps it
        return get_swagger_ui_html(
            openapi_url=str(app.openapi_url),
            title=app.title,
            swagger_js_url=f"{_FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{_FILES}/swagger-ui.css",
            swagger_favicon_url=f"{_FILES}/favicon.png",
        )
