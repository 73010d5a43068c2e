"""Stores measured costs of devices, stages and links, counted work of models, and noise levels of
LoRAs and similar starts, in a SQLite file that processes share. Must know neither torch nor how to
measure.

The file only saves time: after an error with it, measurements of this process stay available in
memory, and at most one warning is logged.
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

# increase the number when a table changes; a new table only needs a new name
FILE = "costs-5.sqlite"
PATIENCE = 1.0  # seconds to wait for another process that writes
DISTURBED = 0.1  # maximum share of time that an undisturbed process waits for processors
REMEMBERED = 20  # maximum weight, in samples, of earlier runs of a stage
TABLES = ("rates", "contention", "calls", "links", "formulas", "loras", "similar")
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
create table if not exists calls (
    device text not null, key text not null, call_rows integer not null, together integer not null,
    seconds real not null check (seconds > 0 and seconds < 1e30),
    samples integer not null check (samples between 1 and 1e9),
    primary key (device, key, call_rows, together)
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
create table if not exists similar (
    scale text not null, similarity real not null check (similarity between -1 and 1.001),
    level real not null check (level > 0 and level < 1e30), primary key (scale, similarity)
);
"""  # the checks reject values of a damaged file, which would break divisions


@dataclass(frozen=True, slots=True)
class Rates:
    """Holds the rates of a device that works alone. `disturbed`: other programs took processor time
    during the measurement.
    """

    flops_per_second: float
    bytes_per_second: float
    seconds_per_kernel: float  # to start a kernel
    # copies from the host's pinned memory; inf: the device computes in host memory
    bus_bytes_per_second: float = math.inf
    disturbed: bool = False


@dataclass(frozen=True, slots=True)
class Contention:
    """Holds the slow-down (at least 1) of arithmetic and memory traffic while the host's other
    devices do the same work. `disturbed`: other programs took processor time during a measurement.
    """

    arithmetic: float = 1.0
    memory: float = 1.0
    disturbed: bool = False


class CostStore:
    """Stores measured costs by device key (`measure.device.device_key`), in a file in a cache
    folder; if the folder is None, only in memory.

    `together`: the number of devices of one host that work at the same time; 1 is alone. A store
    sees the file as it was on opening, and its own updates. Threads may share one.
    """

    def __init__(self, cache: Path | None) -> None:
        self._lock = threading.Lock()
        self._assumed: dict[str, Rates] = {}
        self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        self._memory.executescript(SCHEMA)
        self._file = (
            None if cache is None else (CostFile(cache / FILE, SCHEMA, self._copy_to, PATIENCE))
        )
        if self._file is not None:
            self._file.load(self._memory, TABLES)

    def rates(self, device: str) -> Rates | None:
        """Returns the rates of a device; None if never measured."""
        columns = "flops, bytes, kernel, bus, disturbed"
        rows = self._read(f"select {columns} from rates where device = ?", device)
        if not rows:
            return None
        flops, size, kernel, bus, disturbed = rows[0]
        return Rates(flops, size, kernel, bus, bool(disturbed))

    def wants_rates(self, device: str) -> bool:
        """Returns whether to measure a device: its rates are unknown, or were disturbed by other
        programs that do not disturb this process now.
        """
        known = self.rates(device)
        return known is None or (known.disturbed and _is_left_alone())

    def assume_rates(self, device: str, rates: Rates) -> None:
        """Uses rates until some are measured. They are not stored in the file."""
        self._assumed[device] = rates

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
        """Returns the contention of `together` equal devices of a host; None if never measured."""
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
        """Returns whether to measure contention, by the rule of `wants_rates`."""
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
        """Returns seconds of single calls, alone and with `together` busy devices, keyed as
        `Device.measured`.
        """
        query = (
            "select key, call_rows, together, seconds from calls where device = ? and "
            "together in (1, ?)"
        )
        return {
            (key, call_rows, count > 1): seconds
            for key, call_rows, count, seconds in self._read(query, device, together)
        }

    def record(
        self,
        device: str,
        samples: Mapping[tuple[str, int], Sequence[float]],
        together: int = 1,
        replace: bool = False,
    ) -> dict[CostKey, float]:
        """Stores the seconds of single calls, by cost key and number of rows, and returns their
        medians.

        Unless `replace`, averages with earlier runs, weighted by their numbers of samples, at most
        20.
        """
        medians = {
            stage: (statistics.median(usable), len(usable))
            for stage, seconds in samples.items()
            if (usable := [second for second in seconds if 0 < second < math.inf])
        }
        rows = [
            (device, key, call_rows, together, *median)
            for (key, call_rows), median in medians.items()
        ]
        remembered = "0" if replace else f"min(samples, {REMEMBERED})"
        self._write(
            "insert into calls values (?, ?, ?, ?, ?, ?) on conflict do update set "
            f"seconds = (seconds * {remembered} + excluded.seconds * excluded.samples) / "
            f"({remembered} + excluded.samples), "
            f"samples = {remembered} + excluded.samples",
            rows,
        )
        return {
            (key, call_rows, together > 1): seconds
            for (key, call_rows), (seconds, _) in medians.items()
        }

    def link(self, source: str, target: str, transport: str) -> NetworkLink | None:
        """Returns the link between two named places; None if never measured."""
        query = "select bytes, latency from links where source = ? and target = ? and transport = ?"
        rows = self._read(query, source, target, transport)
        return NetworkLink(*rows[0]) if rows else None

    def wants_link(self, source: str, target: str, transport: str) -> bool:
        """Returns whether to measure a link, by the rule of `wants_rates`."""
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
        """Returns whether any counted work is stored."""
        return bool(self._read("select 1 from formulas limit 1"))

    def formula(self, key: str) -> str | None:
        """Returns the counted work of a model's stage in the format of `models.costs.counts`; None
        if never counted.
        """
        rows = self._read("select formula from formulas where key = ?", key)
        return str(rows[0][0]) if rows else None

    def keep_formula(self, key: str, text: str) -> None:
        self._write("insert or replace into formulas values (?, ?)", [(key, text)])

    def lora_level(
        self, model: str, lora: str, network: float, text: float, begins: float
    ) -> float | None:
        """Returns the lowest stored level of a LoRA among profiles whose strengths and initial
        level are at least as high; None if none exists.
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

    def similar_levels(self, scale: str) -> list[tuple[float, float]]:
        """Returns the table of similar starts: the least similarities of prompts, and the noise
        levels, relative to the picture, at which they may begin.
        """
        return self._read("select similarity, level from similar where scale = ?", scale)

    def keep_similar_levels(self, scale: str, levels: Sequence[tuple[float, float]]) -> None:
        """Replaces a table of similar starts."""
        self._write("delete from similar where scale = ?", [(scale,)])
        rows = [(scale, similarity, level) for similarity, level in levels]
        self._write("insert or replace into similar values (?, ?, ?)", rows)

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
        """Returns a device for the planner, one of `together` on its host. Raises KeyError if its
        rates were neither measured nor assumed.
        """
        rates = self.rates(key) or self._assumed.get(key)
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
    """Returns whether the share of time that this process waited for processors is at most
    DISTURBED.
    """
    return scheduled().share_waited <= DISTURBED
