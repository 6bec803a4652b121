"""A pooler of our own in front of PostgreSQL, which treats its clients as pgbouncer does in transaction mode.

A client has a session of the server from the first message of a transaction to the ReadyForQuery that says that none is
open. Nothing is reset in between: what one client leaves on a session, the next one finds there. As with pgbouncer,
five parameters are the client's own and are set on each session that it gets, other startup parameters are refused, and
whoever goes away in the middle of a transaction takes the session along. COPY isn't understood.

Unlike pgbouncer it leaves nothing to chance: the next transaction of a client never comes to the session that it had.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import SHUT_RDWR

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream, Event
from anyio.abc import SocketAttribute, SocketStream, TaskGroup, TaskStatus
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.acceptance.service import short_folder

_PROTOCOL = 3 << 16
_CANCEL = 80877102

_GONE = (EndOfStream, BrokenResourceError, ClosedResourceError)

# What a client sends that a ReadyForQuery answers: Query, FunctionCall, Sync.
_ANSWERED = (b"Q", b"F", b"S")

# How the server calls them, by how a client may.
_CLIENTS_OWN = {
    name.lower(): name
    for name in ("application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings")
}


@dataclass(frozen=True, slots=True)
class _Message:
    kind: bytes
    body: bytes

    def words(self) -> list[str]:
        """Those at the beginning; what is no text may follow."""
        return self.body.decode(errors="replace").split("\0")


class _Line:
    """One end of a connection, in messages."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._received = bytearray()

    async def receive_first(self) -> bytes:
        """What a client says first has no kind."""
        while (body := self._next_body(at=0)) is None:
            self._received += await self._stream.receive()
        return body

    async def receive(self) -> list[_Message]:
        """All that have come, at least one."""
        while not (messages := list(self._complete())):
            self._received += await self._stream.receive()
        return messages

    def _complete(self) -> Iterator[_Message]:
        while self._received:
            kind = bytes(self._received[:1])
            body = self._next_body(at=1)
            if body is None:
                return
            yield _Message(kind, body)

    def _next_body(self, at: int) -> bytes | None:
        end = at + int.from_bytes(self._received[at : at + 4], "big")
        if len(self._received) < max(end, at + 4):
            return None
        body = bytes(self._received[at + 4 : end])
        del self._received[:end]
        return body

    async def send_first(self, body: bytes) -> None:
        await self._stream.send(_with_length(body))

    async def send(self, messages: Iterable[_Message]) -> None:
        await self._stream.send(b"".join(message.kind + _with_length(message.body) for message in messages))

    def end(self) -> None:
        """Whoever receives here, or at the other end, is told so. The stream is its own task's to close."""
        with suppress(OSError):  # the other end was faster
            self._stream.extra(SocketAttribute.raw_socket).shutdown(SHUT_RDWR)  # noqa: S610  not Django's


def _with_length(body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4, "big") + body


def _text(*words: str) -> bytes:
    return b"".join(word.encode() + b"\0" for word in words)


def _failure(sqlstate: str, message: str) -> _Message:
    return _Message(b"E", _text("SFATAL", "VFATAL", f"C{sqlstate}", f"M{message}", ""))


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a client, by its number, has asked a session, by its process."""

    client: int
    process: int
    statements: list[str]


@dataclass(eq=False, slots=True)
class _Session:
    """One of PostgreSQL's."""

    line: _Line
    parameters: dict[str, str] = field(default_factory=dict)
    key: bytes = b""
    ours: int = 1
    """How many answers are still to come that we have asked for: the first says that the session is there."""
    client: "_Client | None" = None
    statements: list[str] = field(default_factory=list)
    """Those of the transaction."""
    answers: int = 0
    """How many answers the client waits for."""
    unfinished: bool = False
    """Whether the client has sent more, and hasn't asked for the answer yet."""

    @property
    def process(self) -> int:
        return int.from_bytes(self.key[:4], "big")


@dataclass(eq=False, slots=True)
class _Client:
    line: _Line
    number: int
    parameters: dict[str, str]
    session: _Session | None = None
    last: _Session | None = None

    @property
    def key(self) -> bytes:
        return self.number.to_bytes(8, "big")


class Pooler:
    """Made by `pooling`."""

    def __init__(self, conninfo: str, folder: Path, sessions: int, tasks: TaskGroup) -> None:
        target = conninfo_to_dict(conninfo)
        name = f".s.PGSQL.{target['port']}"
        self._target = f"{target['host']}/{name}"
        self._startup = _text("user", str(target["user"]), "database", str(target["dbname"]), "")
        self._tasks = tasks
        self._room = sessions
        """How many sessions may still be opened."""
        self._sessions: list[_Session] = []
        self._resting: list[_Session] = []
        self._changed = Event()
        self._greeting: dict[str, str] = {}
        self._clients: dict[bytes, _Client] = {}
        self._clients_so_far = 0
        self.socket = folder / name
        self.conninfo = make_conninfo(conninfo, host=str(folder))
        self.transactions: list[Transaction] = []
        """All so far, those under way included."""
        self.prepared: list[str] = []
        """The names that clients have prepared statements under."""
        self.cancels = 0
        """How many requests to cancel have gone on to PostgreSQL."""

    @property
    def processes(self) -> set[int]:
        """Those of the sessions that are open."""
        return {session.process for session in self._sessions}

    async def open(self) -> None:
        while self._room:
            session = await self._connect()
            self._resting.append(session)
            self._greeting = dict(session.parameters)

    async def serve(self, stream: SocketStream) -> None:
        """Talks to one client until it, or its session, is gone."""
        async with stream:
            with suppress(*_GONE):
                line = _Line(stream)
                first = await line.receive_first()
                code, rest = int.from_bytes(first[:4], "big"), first[4:]
                if code == _CANCEL:
                    await self._cancel(rest)
                elif code == _PROTOCOL:
                    await self._welcome(line, rest.decode().split("\0"))
                else:
                    await line.send([_failure("0A000", "unsupported protocol")])

    async def _cancel(self, key: bytes) -> None:
        async with await anyio.connect_unix(self._target) as stream:
            client = self._clients.get(key)
            if client is not None and client.session is not None:
                self.cancels += 1
                await _Line(stream).send_first(_CANCEL.to_bytes(4, "big") + client.session.key)

    async def _welcome(self, line: _Line, words: list[str]) -> None:
        given = {name.lower(): value for name, value in zip(words[::2], words[1::2], strict=False) if name}
        for name in given.keys() - {"user", "database", *_CLIENTS_OWN}:
            await line.send([_failure("08P01", f"unsupported startup parameter: {name}")])
            return
        own = {_CLIENTS_OWN[name]: value for name, value in given.items() if name in _CLIENTS_OWN}
        self._clients_so_far += 1
        client = _Client(line, self._clients_so_far, self._greeting | own)
        self._clients[client.key] = client
        try:
            await self._converse(client)
        finally:
            del self._clients[client.key]
            if client.session is not None:  # nobody knows what its transaction has come to
                client.session.unfinished = True
                client.session.line.end()

    async def _converse(self, client: _Client) -> None:
        trusted, ready = _Message(b"R", bytes(4)), _Message(b"Z", b"I")
        parameters = [_Message(b"S", _text(*parameter)) for parameter in client.parameters.items()]
        await client.line.send([trusted, *parameters, _Message(b"K", client.key), ready])
        while True:
            messages = await client.line.receive()
            if any(message.kind == b"X" for message in messages):
                return
            session = client.session or await self._lend(client)
            for message in messages:
                session.unfinished = message.kind not in _ANSWERED
                session.answers += 0 if session.unfinished else 1
                self._note(message, session.statements)
            await session.line.send(messages)

    def _note(self, message: _Message, statements: list[str]) -> None:
        if message.kind == b"Q":
            statements.append(message.words()[0])
        elif message.kind == b"P":
            name, statement = message.words()[:2]
            statements.append(statement)
            self.prepared += [name] if name else []

    async def _lend(self, client: _Client) -> _Session:
        while (session := self._another(client.last)) is None:
            if self._room:
                session = await self._connect()
                break
            await self._changed.wait()
        client.session = client.last = session
        session.client = client
        transaction = Transaction(client.number, session.process, [])
        session.statements = transaction.statements
        self.transactions.append(transaction)
        settings = [
            "SET {} = '{}'".format(name, client.parameters[name].replace("'", "''"))
            for name in _CLIENTS_OWN.values()
            if client.parameters[name] != session.parameters[name]
        ]
        if settings:
            session.ours += 1
            await session.line.send([_Message(b"Q", _text("; ".join(settings)))])
        return session

    def _another(self, last: _Session | None) -> _Session | None:
        session = next((each for each in self._resting if each is not last), None)
        if session is not None:
            self._resting.remove(session)
        return session

    def _take_back(self, session: _Session, client: _Client) -> None:
        session.client = client.session = None
        self._resting.append(session)
        self._tell()

    def _tell(self) -> None:
        """Those who wait for a session have a look."""
        self._changed.set()
        self._changed = Event()

    async def _connect(self) -> _Session:
        self._room -= 1
        stream = await anyio.connect_unix(self._target)
        session = _Session(_Line(stream))
        await self._tasks.start(self._follow, stream, session)
        return session

    async def _follow(self, stream: SocketStream, session: _Session, *, task_status: TaskStatus[None]) -> None:
        """Hands on what a session says, for as long as it is there."""
        self._sessions.append(session)
        async with stream:
            with suppress(*_GONE):
                await session.line.send_first(_PROTOCOL.to_bytes(4, "big") + self._startup)
                while session.ours:
                    await self._hand_on(session, await session.line.receive())
                task_status.started()
                while True:
                    await self._hand_on(session, await session.line.receive())
            self._sessions.remove(session)
            if session in self._resting:
                self._resting.remove(session)
            self._room += 1
            self._tell()
        if session.client is not None:
            with suppress(*_GONE):
                await session.client.line.send([_failure("08P01", "server conn crashed?")])
            session.client.line.end()

    async def _hand_on(self, session: _Session, messages: list[_Message]) -> None:
        client = session.client
        for_client: list[_Message] = []
        state = b""
        for message in messages:
            if message.kind == b"K":
                session.key = message.body
            if message.kind == b"S":
                name, value = message.words()[:2]
                session.parameters[name] = value
                if client is not None and not session.ours and name in client.parameters:
                    client.parameters[name] = value
            if session.ours:
                session.ours -= 1 if message.kind == b"Z" else 0
                continue
            for_client.append(message)
            if message.kind == b"Z":
                session.answers -= 1
                state = message.body
        if client is not None:
            await client.line.send(for_client)
            if state == b"I" and not session.answers and not session.unfinished:
                self._take_back(session, client)


@asynccontextmanager
async def pooling(conninfo: str, *, sessions: int) -> AsyncGenerator[Pooler]:
    """A pooler for as long as the body runs, with so many sessions, all of them open."""
    with short_folder() as folder:
        async with anyio.create_task_group() as tasks:
            pooler = Pooler(conninfo, folder, sessions, tasks)
            await pooler.open()
            async with await anyio.create_unix_listener(pooler.socket) as listener:
                tasks.start_soon(listener.serve, pooler.serve)
                yield pooler
                tasks.cancel_scope.cancel()
