"""Connects every pair of workers. A connection has a generation number, and is replaced when either
worker is.
"""

from __future__ import annotations

import itertools
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from katz_graph.executor.messages import Connect, Connected, ConnectFailed, Dial, Listen, Listening
from katz_graph.executor.transport.transports import transports_for

Send = Callable[..., None]
"""(device, message, descriptors): sends a message to a worker; does nothing if it is not connected.
"""


FAILURES = 3  # consecutive connection failures after which two workers count as unreachable


@dataclass(slots=True)
class _Pair:
    generation: int = 0
    connected: int = 0  # number of ends that have reported this generation as connected
    failures: int = 0  # attempts that failed since the last connection
    token: bytes = b""
    transport: str = ""  # that both ends try to open
    transports: dict[str, str] = field(default_factory=dict)  # sending end -> opened transport


class WorkerNetwork:
    """Decides how workers connect, and tracks the connections. Workers without an address run on
    this host and get unnamed socket pairs. Others connect over TCP at their configured addresses.
    """

    def __init__(self, names: Sequence[str], addresses: Mapping[str, str] | None = None) -> None:
        self._addresses = dict(addresses or {})
        self._pairs = {pair: _Pair() for pair in itertools.combinations(names, 2)}
        self._there: dict[str, str] = {}  # assigned worker -> kind of its device

    def joined(self, name: str, device: str, send: Send) -> None:
        """Connects a newly assigned worker with all other assigned workers. `device`: torch's name
        of its device.
        """
        self._there[name] = device.partition(":")[0]
        for first, second in self._pairs:
            if name in (first, second) and {first, second} <= self._there.keys():
                self._connect(first, second, send)

    def left(self, name: str) -> None:
        self._there.pop(name, None)
        for pair, state in self._pairs.items():
            if name in pair:
                state.connected = 0

    def lost(self, name: str, peer: str, generation: int) -> None:
        """Marks a connection as lost, because it broke or a worker ended."""
        state = self._pairs[self._pair(name, peer)]
        if state.generation == generation:
            state.connected = 0

    def reconnected(self, name: str, peer: str, generation: int, send: Send) -> bool:
        """Reconnects two workers. Returns False and does nothing if a worker is missing or if
        `generation` is outdated.
        """
        first, second = pair = self._pair(name, peer)
        if self._pairs[pair].generation != generation or not {first, second} <= self._there.keys():
            return False
        self._connect(first, second, send)
        return True

    def connected(self, name: str, said: Connected) -> None:
        """Records that one end of a pair is connected."""
        state = self._pairs[self._pair(name, said.peer)]
        if said.generation == state.generation:
            state.connected += 1
            state.transports[name] = said.transport
            state.failures = 0 if state.connected == 2 else state.failures

    def listening(self, name: str, said: Listening, send: Send) -> None:
        """Asks the peer of a listening worker to dial."""
        state = self._pairs[self._pair(name, said.peer)]
        if said.generation == state.generation:
            own, other = self._addresses[said.peer], self._addresses[name]
            dial = Dial(name, state.generation, state.transport, state.token, own, other, said.port)
            send(said.peer, dial)

    def connect_failed(self, name: str, said: ConnectFailed, send: Send) -> bool:
        """Lets two workers retry after a failed attempt to connect. Returns False after FAILURES
        consecutive failures.
        """
        pair = self._pair(name, said.peer)
        state = self._pairs[pair]
        if said.generation == state.generation and set(pair) <= self._there.keys():
            state.failures += 1
            if state.failures >= FAILURES:
                return False
            self._connect(*pair, send)
        return True

    def on_one_host(self, first: str, second: str) -> bool:
        return first not in self._addresses and second not in self._addresses

    def transport(self, source: str, target: str) -> str:
        """Returns the transport of tensors from one connected worker to another."""
        return self._pairs[self._pair(source, target)].transports[source]

    def _pair(self, name: str, peer: str) -> tuple[str, str]:
        return (name, peer) if (name, peer) in self._pairs else (peer, name)

    def connects(self, names: Sequence[str]) -> bool:
        """Returns whether these workers are present and connected with each other."""
        among = (state for pair, state in self._pairs.items() if set(pair) <= set(names))
        return set(names) <= self._there.keys() and all(state.connected == 2 for state in among)

    def is_complete(self, name: str) -> bool:
        """Returns whether a worker is present and connected with all other present workers."""
        concerned = [
            (pair, state)
            for pair, state in self._pairs.items()
            if name in pair and set(pair) <= self._there.keys()
        ]
        return name in self._there and all(state.connected == 2 for _, state in concerned)

    def _connect(self, first: str, second: str, send: Send) -> None:
        state = self._pairs[first, second]
        state.generation += 1
        state.connected = 0
        one_host = self.on_one_host(first, second)
        kinds = [self._there[name] for name in (first, second)]
        state.transport = transport = transports_for(one_host, kinds)[0]
        if not one_host:
            state.token = secrets.token_bytes(32)
            listen = Listen(
                second, state.generation, transport, state.token, self._addresses[first]
            )
            return send(first, listen)
        ends = socket.socketpair()
        for end, name, peer in zip(ends, (first, second), (second, first), strict=True):
            with end:
                connect = Connect(peer, state.generation, transport, hosts=name == first)
                send(name, connect, [end.fileno()])
