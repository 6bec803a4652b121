"""What PostgreSQL does for a lookup: the statements it gets, and the plan that the session really uses."""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo
from psycopg.errors import Diagnostic

from app.store import bands
from app.store.lookups import Lookup, Sought, parameters

_NAMED = re.compile(rb"%\((\w+)\)s")


@dataclass(frozen=True)
class Node:
    """A node of a plan that was executed; the names are those of EXPLAIN."""

    properties: dict[str, Any]

    @property
    def kind(self) -> str:
        return self.properties["Node Type"]

    @property
    def table(self) -> str | None:
        return self.properties.get("Relation Name")

    @property
    def index(self) -> str | None:
        return self.properties.get("Index Name")

    @property
    def condition(self) -> str:
        return self.properties.get("Index Cond", "")

    @property
    def rows(self) -> float:
        """Rows read, those that a filter took away included."""
        removed = self.properties.get("Rows Removed by Filter", 0)
        return (self.properties["Actual Rows"] + removed) * self.properties["Actual Loops"]

    @property
    def heap_fetches(self) -> int:
        return self.properties["Heap Fetches"]

    def all(self) -> Iterator["Node"]:
        """The node itself and those below it."""
        yield self
        for below in self.properties.get("Plans", ()):
            yield from Node(below).all()

    def on(self, table: str) -> list["Node"]:
        return [node for node in self.all() if node.table == table]


async def executed_plan(connection: AsyncConnection, lookup: Lookup, sought: Sought) -> Node:
    """Executes the statement that psycopg has prepared for such a lookup on this connection: the plan that it keeps.

    EXPLAIN of the statement itself would make a plan for these values.
    """
    statement = bands.lookup(lookup.layout, scan=lookup.scan)
    names = list(dict.fromkeys(_NAMED.findall(statement)))
    numbered = _NAMED.sub(lambda match: b"$%d" % (names.index(match[1]) + 1), statement)
    cursor = await connection.execute(
        "SELECT name FROM pg_prepared_statements WHERE statement = %s::text ORDER BY prepare_time DESC LIMIT 1",
        [numbered.decode()],
    )
    prepared = await cursor.fetchone()
    assert prepared, "the statement is not prepared"
    values = parameters(lookup, sought)
    execute = sql.SQL("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE {} ({})").format(
        sql.Identifier(prepared[0]), sql.SQL(", ").join(sql.Literal(values[name.decode()]) for name in names)
    )
    row = await (await connection.execute(execute)).fetchone()
    assert row
    return Node(row[0][0]["Plan"])


def telling_its_statements(conninfo: str) -> str:
    """The connection string of sessions that report each statement which they execute to the client."""
    return make_conninfo(conninfo, options="-c log_statement=all -c client_min_messages=log")


@contextmanager
def statements(connection: AsyncConnection) -> Generator[list[str]]:
    """Collects what such a session executes."""
    executed: list[str] = []

    def note(diagnostic: Diagnostic) -> None:
        message = diagnostic.message_primary or ""
        if diagnostic.severity_nonlocalized == "LOG" and message.startswith(("statement: ", "execute ")):
            executed.append(message.partition(": ")[2])

    connection.add_notice_handler(note)
    try:
        yield executed
    finally:
        connection.remove_notice_handler(note)


async def entries_read(connection: AsyncConnection) -> dict[str, int]:
    """How many entries of each index this transaction has read so far, where there are any."""
    cursor = await connection.execute("""
        SELECT indexrelname, pg_stat_get_xact_tuples_returned(indexrelid)
        FROM pg_stat_user_indexes
        WHERE pg_stat_get_xact_tuples_returned(indexrelid) > 0
    """)
    return dict(await cursor.fetchall())
