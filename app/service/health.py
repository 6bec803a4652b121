"""Whether the service can answer."""

from app.store.database import Database


class Health:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def require_database(self) -> None:
        """UnavailableError where a request would get one."""
        async with self._database.connection() as connection:
            await connection.execute("SELECT")
