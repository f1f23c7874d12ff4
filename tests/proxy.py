"""A proxy in front of the server, on a unix socket, that counts round trips."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg import conninfo

_READY_FOR_QUERY = ord("Z")


class Proxy:
    """Forwards connections and counts the server's "ready for query": one for each time that a client waited.

    `cut_at` makes it lose a request or an answer; `shut` keeps new connections waiting; `silence` swallows what the
    server says.
    """

    def __init__(self, folder: Path, dsn: str) -> None:
        self._server = conninfo.conninfo_to_dict(dsn)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self.dsn = conninfo.make_conninfo(dsn, host=str(folder), port="5432", sslmode="disable")
        self.round_trips = 0
        self.connections = 0
        self._cut: tuple[bytes, bool, bool] | None = None
        self._unready = False
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._silent = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._may_pass.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._sockets:
            _hang_up(end)
        for thread in self._threads:
            thread.join(10)

    def cut_at(self, text: bytes, *, unsent: bool = False, under_way: bool = False, unready: bool = False) -> None:
        """Cut the next connection that sends these bytes: when the server has done it, and before the client is told.

        Or `unsent`: before the server sees them. Or `under_way`: at once, while the server is at it. Or `unready`: when
        the client was told all but that the server is ready, and so has committed.
        """
        self._unready = unready
        self._cut = text, unsent, under_way

    @property
    def has_cut(self) -> bool:
        """Whether the connection that `cut_at` waited for was cut."""
        return self._cut is None

    def shut(self) -> None:
        """Keep new connections waiting until `open`."""
        self._may_pass.clear()

    def open(self) -> None:
        """Let new connections through."""
        self._may_pass.set()

    def silence(self) -> None:
        """Tell the clients nothing any more, while their connections stay open."""
        self._silent = True

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._may_pass.wait()
            self.connections += 1
            server = self._connect()
            self._sockets += [client, server]
            doomed = threading.Event()
            for target in (self._forward, self._count):
                thread = threading.Thread(target=target, args=(client, server, doomed), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _connect(self) -> socket.socket:
        host, port = str(self._server["host"]), int(self._server.get("port") or 5432)
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
        else:
            server = socket.create_connection((host, port))
        return server

    def _forward(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        while data := _receive(client):
            if self._cut and self._cut[0] in data:
                _, unsent, under_way = self._cut
                doomed.set()
                self._cut = None
                if under_way:
                    _send(server, data)
                if unsent or under_way:
                    _hang_up(client)
                    break
            _send(server, data)
        _hang_up(server)

    def _count(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        """Forward the server's messages: a byte of type, four of length, which they include."""
        pending = bytearray()
        while data := _receive(server):
            pending += data
            while len(pending) >= 5 and len(pending) > (size := int.from_bytes(pending[1:5], "big")):
                self.round_trips += pending[0] == _READY_FOR_QUERY
                if doomed.is_set() and pending[0] == _READY_FOR_QUERY:
                    _hang_up(client)
                    _hang_up(server)
                    return
                if doomed.is_set() and self._unready:
                    _send(client, bytes(pending[: size + 1]))
                del pending[: size + 1]
            if not doomed.is_set() and not self._silent:
                _send(client, data)
        _hang_up(client)


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(65_536)
    except OSError:
        return b""


def _send(end: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the other side hung up: the next receive tells
        end.sendall(data)


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
