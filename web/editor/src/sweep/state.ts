/** Holds the sweep that was asked for last: its fields, and its runs once it was started. */
import { create } from "zustand";
import type { Path } from "../document/scope";
import type { Axis, Run } from "./sweep";

interface Sweep {
  /** The document that it is of, and the graph of its fields. */
  readonly session: string;
  readonly path: Path;
  readonly axes: readonly Axis[];
  /** What was started: the names of its fields, and a job for each combination of values. */
  readonly started: { readonly names: readonly string[]; readonly runs: readonly Run[] } | null;
}

export const useSweep = create<Sweep>(() => ({ session: "", path: [], axes: [], started: null }));

export function changeAxis(at: number, change: Partial<Axis>): void {
  useSweep.setState(({ axes }) => ({
    axes: axes.map((axis, number) => (number === at ? { ...axis, ...change } : axis)),
  }));
}

export function removeAxis(at: number): void {
  useSweep.setState(({ axes }) => ({ axes: axes.filter((_, number) => number !== at) }));
}
