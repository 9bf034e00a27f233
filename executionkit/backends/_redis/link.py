"""One connection to one server, for one event loop: what is asked goes out together.

Everything that is asked within one turn of the loop is written at once, and answered in
order. The oldest question that is not answered in time ends the connection; the next
question makes a new one. A question that was lost with its connection, and that may be
asked twice, is asked again, once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from executionkit._clock import SystemClock
from executionkit.backends._redis.resp import (
    Parser,
    ProtocolError,
    Question,
    Reply,
    ReplyError,
    pack,
)
from executionkit.errors import StateStoreError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from executionkit.backends._redis.address import Address

__all__ = ("Link", "Then")

Then: TypeAlias = "Callable[[Reply], None]"
_REAL: Final = SystemClock()  # the network takes real time, whatever clock waits are on
_CLIENT: Final = b"executionkit"
_MAX_WAITING: Final = 100_000


class _Asked:
    """A question under way."""

    __slots__ = ("deadline", "future", "is_again", "question", "then")

    def __init__(
        self,
        question: Question,
        deadline: float,
        future: asyncio.Future[Reply] | None = None,
        then: Then | None = None,
    ) -> None:
        self.question: Question = question
        self.future: asyncio.Future[Reply] | None = future
        self.then: Then | None = then
        self.deadline: float = deadline
        self.is_again: bool = False

    @property
    def is_done(self) -> bool:
        return self.future is not None and self.future.done()

    def answer(self, reply: Reply) -> None:
        if self.then is not None:
            self.then(reply)
        elif self.future is not None and not self.future.done():
            self.future.set_result(reply)

    def fail(self, exc: Exception) -> None:
        if self.then is not None:
            self.then(exc)
        elif self.future is not None and not self.future.done():
            self.future.set_exception(exc)


class _Pipe(asyncio.Protocol):
    """One connection: replies in the order of what was sent."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._parser = Parser()
        self.transport: asyncio.Transport | None = None
        self.sent: deque[_Asked] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            replies = self._parser.feed(data)
            for reply in replies:
                self._link.answered(self.sent.popleft(), reply)
        except (ProtocolError, IndexError) as exc:
            self._link.lost(self, exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.lost(self, exc)

    def send(self, asked: list[_Asked]) -> None:
        self.sent.extend(asked)
        if self.transport is not None:
            self.transport.write(b"".join([pack(a.question.arguments) for a in asked]))

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _RefusedError(Exception):
    """The server let nobody in.

    Args:
        command: What it refused.
        code: The code of its answer; the text may repeat a password.
    """

    def __init__(self, command: str, code: str) -> None:
        super().__init__(code)
        self.command: str = command

    @property
    def why(self) -> str:
        reasons = {
            "AUTH": ": the credentials are wrong, or it wants none",
            "NOAUTH": ": it wants credentials, and the address has none",
            "SELECT": ": the number of the database is out of range, or not allowed",
        }
        return reasons.get(self.command, "")


class Link:
    """Questions of one event loop to one server.

    Args:
        address: Where it is.
        timeout: Seconds that a question may take, the connection included.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._pipe: _Pipe | None = None
        self._waiting: list[_Asked] = []
        self._is_scheduled = False
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._guard: AsyncGenerator[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._waiting and (self._pipe is None or not self._pipe.sent)

    def ask(self, question: Question) -> asyncio.Future[Reply]:
        """The reply to come.

        Raises:
            StateStoreError: By the future, when the server cannot be asked, does not
                answer in time, or the connection is lost.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._enter(_Asked(question, self._loop.time() + self._timeout, future))
        return future

    def tell(self, question: Question, then: Then) -> None:
        """Hand the reply, or the `StateStoreError`, to `then`."""
        self._enter(_Asked(question, self._loop.time() + self._timeout, then=then))

    def answered(self, asked: _Asked, reply: Reply) -> None:
        """Hand a reply on; a script that the server lost goes out in full."""
        fallback = asked.question.fallback
        if (
            isinstance(reply, ReplyError)
            and fallback is not None
            and reply.code == "NOSCRIPT"
        ):
            asked.question = fallback
            self._put(asked)
            return
        asked.answer(reply)

    def lost(self, pipe: _Pipe, exc: Exception | None) -> None:
        """A connection has ended: ask again what may be asked twice, fail the rest."""
        sent, pipe.sent = pipe.sent, deque()
        if self._pipe is pipe:
            self._pipe = None
        pipe.abort()
        for asked in sent:
            again = asked.question.again
            if again is None or asked.is_again or asked.is_done:
                asked.fail(self._error("closed the connection", exc))
                continue
            asked.question, asked.is_again = again, True
            self._put(asked)

    def drop(self) -> None:
        """Let go of the connection at once; what is under way fails."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self._fail_all("is no longer connected: the store was closed")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Wait for what is under way, within the time of a question; then let go."""
        if not self.is_idle:
            # Replies come in order: with this one all others are there.
            await asyncio.wait([self.ask(Question((b"PING",)))], timeout=self._timeout)
        connecting = self._connecting
        self.drop()
        if connecting is not None:
            await asyncio.wait([connecting])
        if self._guard is not None:
            await self._guard.aclose()
            self._guard = None
        await _REAL.sleep(0)  # the transport closes in the next turn

    # --- inside ----------------------------------------------------------------------
    def _enter(self, asked: _Asked) -> None:
        is_cut_off = self._pipe is None and self._connecting is None
        if asked.question.is_minor and is_cut_off and not self._waiting:
            self._loop.call_soon(asked.fail, self._error("is not connected"))
        elif len(self._waiting) >= _MAX_WAITING:
            error = self._error("has too many questions waiting")
            self._loop.call_soon(asked.fail, error)
        else:
            self._put(asked)

    def _put(self, asked: _Asked) -> None:
        self._waiting.append(asked)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        if not self._waiting:
            return
        if self._timer is None:
            self._timer = self._loop.call_at(self._waiting[0].deadline, self._check)
        if self._pipe is not None:
            asked, self._waiting = self._waiting, []
            self._pipe.send(asked)
        elif self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())

    def _check(self) -> None:
        """Whether the oldest question has waited too long."""
        self._timer = None
        sent = self._pipe.sent if self._pipe is not None else None
        oldest = sent[0] if sent else next(iter(self._waiting), None)
        if oldest is None:
            return
        if oldest.deadline > self._loop.time():
            self._timer = self._loop.call_at(oldest.deadline, self._check)
            return
        self._fail_all(f"did not answer within {self._timeout:g}s")

    def _fail_all(self, what: str, exc: Exception | None = None) -> None:
        pipe, self._pipe = self._pipe, None
        waiting, self._waiting = self._waiting, []
        if pipe is not None:
            waiting = [*pipe.sent, *waiting]
            pipe.sent.clear()
            pipe.abort()
        for asked in waiting:
            asked.fail(self._error(what, exc))

    async def _connect(self) -> None:
        pipe = _Pipe(self)
        try:
            async with _REAL.timeout(self._timeout):
                await self._open(pipe)
                await self._greet(pipe)
        except BaseException as exc:
            pipe.abort()
            self._connecting = None
            if not isinstance(exc, Exception):
                raise
            self._fail_all(*self._refused(exc))
            return
        if self._guard is None:
            self._guard = self._until_the_loop_ends()
            await anext(self._guard)
        self._pipe, self._connecting = pipe, None
        self._flush()

    async def _open(self, pipe: _Pipe) -> None:
        address = self._address
        if address.path is not None:
            await self._loop.create_unix_connection(lambda: pipe, address.path)
            return
        tls = address.tls()
        name = address.host if tls is not None else None
        await self._loop.create_connection(
            lambda: pipe, address.host, address.port, ssl=tls, server_hostname=name
        )

    async def _greet(self, pipe: _Pipe) -> None:
        address = self._address
        commands: list[tuple[bytes, ...]] = []
        if address.password is not None or address.username is not None:
            login = (address.username, address.password or "")
            named = [part.encode() for part in login if part is not None]
            commands.append((b"AUTH", *named))
        if address.db:
            commands.append((b"SELECT", b"%d" % address.db))
        commands.append((b"CLIENT", b"SETNAME", _CLIENT))
        deadline = self._loop.time() + self._timeout
        asked = [
            _Asked(Question(command), deadline, self._loop.create_future())
            for command in commands
        ]
        pipe.send(asked)
        replies = [await each.future for each in asked if each.future is not None]
        # A server that hides the command CLIENT is as good.
        for command, reply in zip(commands[:-1], replies[:-1], strict=True):
            if isinstance(reply, ReplyError):
                raise _RefusedError(command[0].decode(), reply.code)
        last = replies[-1]
        if isinstance(last, ReplyError) and last.code in {"NOAUTH", "LOADING"}:
            raise _RefusedError(last.code, last.code)

    async def _until_the_loop_ends(self) -> AsyncGenerator[None]:
        # A loop closes its generators before it ends: so nothing is left open, even
        # when nobody closes the store.
        try:
            yield
        finally:
            self.drop()

    def _refused(self, exc: Exception) -> tuple[str, Exception | None]:
        if isinstance(exc, TimeoutError):
            return f"did not answer within {self._timeout:g}s", exc
        if isinstance(exc, _RefusedError):
            return f"refused the connection ({exc}{exc.why})", exc
        if isinstance(exc, StateStoreError):  # lost while it was being made
            return "closed the connection", exc
        return f"cannot be reached ({type(exc).__name__})", exc

    def _error(self, what: str, exc: Exception | None = None) -> StateStoreError:
        msg = f"Redis at {self._address.shown} {what}"
        if isinstance(exc, _RefusedError):
            # Not as the cause: what a server answers may repeat what it was told.
            return StateStoreError(msg, details={"refused": exc.command})
        return StateStoreError(msg, original_error=exc)
