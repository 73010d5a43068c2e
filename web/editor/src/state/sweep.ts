/** Holds the last sweep: its fields and, once started, its runs. */
import { create } from "zustand";
import type { Path } from "../document/scope";
import type { Axis, Run } from "../sweep/sweep";

interface Sweep {
  /** The document, and the path of the graph with the fields. */
  readonly session: string;
  readonly path: Path;
  readonly axes: readonly Axis[];
  /** The started sweep: the names of its fields, and a job for each combination of values. */
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
