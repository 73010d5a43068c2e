"""Keeps measured costs of devices, stages and links, counted work of models, and how long LoRAs may
be missing, in a SQLite file that processes share. Must know neither torch nor how to measure.

The file only saves time: whatever is wrong with it, what was measured in this process holds here,
and one warning is logged at most.
"""

from __future__ import annotations

import math
import sqlite3
import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katz_graph.executor.measure.cost_file import CostFile
from katz_graph.host.schedule import scheduled
from katz_graph.ir.device import CostKey, Device, NetworkLink

FILE = "costs-5.sqlite"  # another number when the tables change
PATIENCE = 1.0  # seconds that another process may take to write
DISTURBED = 0.1  # share of its time that a process waits for processors beside other programs
REMEMBERED = 20  # samples of earlier runs that weigh in when a stage is measured again
TABLES = ("rates", "contention", "stages", "links", "formulas", "loras")
SCHEMA = """
create table if not exists rates (
    device text not null, flops real not null check (flops > 0 and flops < 1e30),
    bytes real not null check (bytes > 0 and bytes < 1e30),
    kernel real not null check (kernel >= 0 and kernel < 1e30), bus real not null check (bus > 0),
    disturbed integer not null, primary key (device)
);
create table if not exists contention (
    host text not null, device text not null, together integer not null,
    arithmetic real not null check (arithmetic between 1 and 1e6),
    memory real not null check (memory between 1 and 1e6), disturbed integer not null,
    primary key (host, device, together)
);
create table if not exists stages (
    device text not null, key text not null, members integer not null, together integer not null,
    seconds real not null check (seconds > 0 and seconds < 1e30),
    samples integer not null check (samples between 1 and 1e9),
    primary key (device, key, members, together)
);
create table if not exists links (
    source text not null, target text not null, transport text not null,
    bytes real not null check (bytes > 0 and bytes < 1e30),
    latency real not null check (latency >= 0 and latency < 1e30), disturbed integer not null,
    primary key (source, target, transport)
);
create table if not exists formulas (key text not null, formula text not null, primary key (key));
create table if not exists loras (
    model text not null, lora text not null,
    network real not null check (network >= 0 and network < 1e30),
    text real not null check (text >= 0 and text < 1e30),
    begins real not null check (begins > 0 and begins < 1e30),
    level real not null check (level > 0 and level <= begins),
    primary key (model, lora, network, text, begins)
);
"""  # the checks keep what a damaged file holds from being divided by


@dataclass(frozen=True, slots=True)
class Rates:
    """Holds the rates of a device that works alone: operations a second, bytes a second, seconds
    that the start of a kernel takes, and bytes a second that come from the host's pinned memory to
    its own (inf: it is the same). `disturbed`: other programs took the processors meanwhile.
    """

    flops_per_second: float
    bytes_per_second: float
    seconds_per_kernel: float
    bus_bytes_per_second: float = math.inf
    disturbed: bool = False


@dataclass(frozen=True, slots=True)
class Contention:
    """Holds how many times as long arithmetic and memory traffic take while the host's other
    devices do the same; at least 1. `disturbed`: other programs took the processors while one of
    the two was measured.
    """

    arithmetic: float = 1.0
    memory: float = 1.0
    disturbed: bool = False


class CostStore:
    """Keeps measured costs by device key (`measure.device.device_key`), with the file in a cache
    folder; with None they last as long as the store.

    `together` counts the devices of one host that work at the same time: 1 is alone. A store sees
    what the file held when it was opened, and what it keeps itself. Threads may share one.
    """

    def __init__(self, cache: Path | None) -> None:
        self._lock = threading.Lock()
        self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        self._memory.executescript(SCHEMA)
        self._file = (
            None if cache is None else (CostFile(cache / FILE, SCHEMA, self._copy_to, PATIENCE))
        )
        if self._file is not None:
            self._file.load(self._memory, TABLES)

    def rates(self, device: str) -> Rates | None:
        """Returns the rates of a device; None when they were never measured."""
        columns = "flops, bytes, kernel, bus, disturbed"
        rows = self._read(f"select {columns} from rates where device = ?", device)
        if not rows:
            return None
        flops, size, kernel, bus, disturbed = rows[0]
        return Rates(flops, size, kernel, bus, bool(disturbed))

    def wants_rates(self, device: str) -> bool:
        """Tells whether a device is to be measured: it never was, or beside other programs, which
        have left this process alone.
        """
        known = self.rates(device)
        return known is None or (known.disturbed and _is_left_alone())

    def keep_rates(self, device: str, rates: Rates) -> None:
        row = (
            device,
            rates.flops_per_second,
            rates.bytes_per_second,
            rates.seconds_per_kernel,
            rates.bus_bytes_per_second,
            rates.disturbed,
        )
        self._write("insert or replace into rates values (?, ?, ?, ?, ?, ?)", [row])

    def contention(self, host: str, device: str, together: int) -> Contention | None:
        """Returns how `together` equal devices of a host slow each other down; None when that was
        never measured.
        """
        query = (
            "select arithmetic, memory, disturbed from contention "
            "where host = ? and device = ? and together = ?"
        )
        rows = self._read(query, host, device, together)
        if not rows:
            return None
        arithmetic, memory, disturbed = rows[0]
        return Contention(arithmetic, memory, bool(disturbed))

    def wants_contention(self, host: str, device: str, together: int) -> bool:
        """Returns whether contention is to be measured, as `wants_rates` does."""
        known = self.contention(host, device, together)
        return known is None or (known.disturbed and _is_left_alone())

    def keep_contention(
        self, host: str, device: str, together: int, contention: Contention
    ) -> None:
        row = (
            host,
            device,
            together,
            contention.arithmetic,
            contention.memory,
            contention.disturbed,
        )
        self._write("insert or replace into contention values (?, ?, ?, ?, ?, ?)", [row])

    def stages(self, device: str, together: int = 1) -> dict[CostKey, float]:
        """Returns seconds of single calls, alone and while `together` devices work, for a
        Device.
        """
        query = (
            "select key, members, together, seconds from stages where device = ? and "
            "together in (1, ?)"
        )
        return {
            (key, members, count > 1): seconds
            for key, members, count, seconds in self._read(query, device, together)
        }

    def record(
        self,
        device: str,
        samples: Mapping[tuple[str, int], Sequence[float]],
        together: int = 1,
        replace: bool = False,
    ) -> dict[CostKey, float]:
        """Keeps the seconds of single calls, by cost key and members; returns their medians.

        Earlier runs weigh in by their number of samples, at most 20, unless `replace`.
        """
        medians = {
            stage: (statistics.median(usable), len(usable))
            for stage, seconds in samples.items()
            if (usable := [second for second in seconds if 0 < second < math.inf])
        }
        rows = [
            (device, key, members, together, *median) for (key, members), median in medians.items()
        ]
        remembered = "0" if replace else f"min(samples, {REMEMBERED})"
        self._write(
            "insert into stages values (?, ?, ?, ?, ?, ?) on conflict do update set "
            f"seconds = (seconds * {remembered} + excluded.seconds * excluded.samples) / "
            f"({remembered} + excluded.samples), "
            f"samples = {remembered} + excluded.samples",
            rows,
        )
        return {
            (key, members, together > 1): seconds
            for (key, members), (seconds, _) in medians.items()
        }

    def link(self, source: str, target: str, transport: str) -> NetworkLink | None:
        """Returns the link between two named places; None when it was never measured."""
        query = "select bytes, latency from links where source = ? and target = ? and transport = ?"
        rows = self._read(query, source, target, transport)
        return NetworkLink(*rows[0]) if rows else None

    def wants_link(self, source: str, target: str, transport: str) -> bool:
        """Returns whether a link is to be measured, as `wants_rates` does."""
        query = "select disturbed from links where source = ? and target = ? and transport = ?"
        rows = self._read(query, source, target, transport)
        return not rows or (bool(rows[0][0]) and _is_left_alone())

    def keep_link(
        self,
        source: str,
        target: str,
        transport: str,
        link: NetworkLink,
        disturbed: bool = False,
    ) -> None:
        row = (source, target, transport, link.bytes_per_second, link.latency, disturbed)
        self._write("insert or replace into links values (?, ?, ?, ?, ?, ?)", [row])

    @property
    def has_formulas(self) -> bool:
        """Returns whether any work was ever counted here."""
        return bool(self._read("select 1 from formulas limit 1"))

    def formula(self, key: str) -> str | None:
        """Returns the counted work of a stage of a model, as `models.costs.counts` writes it; None
        when it was never counted.
        """
        rows = self._read("select formula from formulas where key = ?", key)
        return str(rows[0][0]) if rows else None

    def keep_formula(self, key: str, text: str) -> None:
        self._write("insert or replace into formulas values (?, ?)", [(key, text)])

    def lora_level(
        self, model: str, lora: str, network: float, text: float, begins: float
    ) -> float | None:
        """Returns the lowest level that was kept of a LoRA for strengths at least as great, and a
        sampler that begins at least as high; None if there is none.
        """
        query = (
            "select min(level) from loras where model = ? and lora = ? and network >= ? and "
            "text >= ? and begins >= ?"
        )
        ((level,),) = self._read(query, model, lora, network, text, begins)
        return None if level is None else float(level)

    def keep_lora_level(
        self, model: str, lora: str, network: float, text: float, begins: float, level: float
    ) -> None:
        row = (model, lora, network, text, begins, level)
        self._write("insert or replace into loras values (?, ?, ?, ?, ?, ?)", [row])

    def device(
        self,
        name: str,
        key: str,
        dtype: str,
        host: str = "",
        together: int = 1,
        memory_bytes: float = math.inf,
        torch_name: str = "cpu",
    ) -> Device:
        """Returns a device for the planner, one of `together` on its host. KeyError when its rates
        were never measured.
        """
        rates = self.rates(key)
        if rates is None:
            raise KeyError(f"no rates of {key} ({name})")
        contention = self.contention(host, key, together) or Contention()
        return Device(
            name,
            rates.flops_per_second,
            rates.bytes_per_second,
            rates.seconds_per_kernel,
            dtype,
            memory_bytes,
            host,
            contention=contention.arithmetic,
            memory_contention=contention.memory,
            measured=self.stages(key, together),
            torch_name=torch_name,
            bus_bytes_per_second=rates.bus_bytes_per_second,
        )

    def _read(self, query: str, *values: str | float) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._memory.execute(query, values).fetchall()

    def _write(self, statement: str, rows: Sequence[tuple[str | float, ...]]) -> None:
        """Writes to memory, and to the file without waiting for other processes."""
        if not rows:
            return
        with self._lock, self._memory:
            self._memory.executemany(statement, rows)
        if self._file is not None:
            self._file.write(statement, rows)

    def _copy_to(self, file: sqlite3.Connection) -> None:
        with self._lock:
            self._memory.backup(file)


def _is_left_alone() -> bool:
    """Returns whether other programs have left the processors to this process until now."""
    return scheduled().share_waited <= DISTURBED
