/** Parses the typed values of a sweep, and arranges its runs in a grid. Pure. */
import type { Widget } from "../catalog/catalog";
import { parsedNumber } from "../catalog/numbers";
import type { Json } from "../json";

/** The maximum number of runs and of fields in a sweep. */
export const MAX_RUNS = 48;
export const MAX_AXES = 3;

/** A swept field, and its typed values, one per line. */
export interface Axis {
  readonly node: string;
  readonly widget: string;
  readonly text: string;
}

export interface Typed {
  readonly values: readonly Json[];
  /** The lines that are not valid values of the field. */
  readonly wrong: readonly string[];
}

export function typedValues(widget: Widget, text: string): Typed {
  const lines = text.split("\n").map((line) => line.trim());
  const read = lines.filter((line) => line !== "").map((line) => [line, valueOf(widget, line)]);
  const values = read.flatMap(([, value]) => value ?? []);
  return {
    values: [...new Set(values as Json[])],
    wrong: read.flatMap(([line, value]) => (value === null ? [String(line)] : [])),
  };
}

/** Parses a line; null if it is not a valid value of the widget. */
function valueOf(widget: Widget, line: string): Json {
  switch (widget.kind) {
    case "number":
      return parsedNumber(line, widget);
    case "choice":
      return widget.choices.find((one) => String(one) === line) ?? null;
    case "switch":
      return line === "true" ? true : line === "false" ? false : null;
    case "text":
    case "colour":
      return line;
  }
}

/** Returns all combinations of one value per list; the last list varies fastest. */
export function combinations(lists: readonly (readonly Json[])[]): readonly (readonly Json[])[] {
  return lists.reduce<readonly (readonly Json[])[]>(
    (found, list) => found.flatMap((values) => list.map((value) => [...values, value])),
    [[]],
  );
}

export function countOf(lists: readonly (readonly Json[])[]): number {
  return lists.length === 0 ? 0 : lists.reduce((count, { length }) => count * length, 1);
}

export interface Run {
  /** The value of each axis. */
  readonly values: readonly Json[];
  readonly job: string;
}

/** A row of runs. The last axis varies within a row, the others between rows. */
export interface Row {
  readonly heading: readonly Json[];
  readonly runs: readonly Run[];
}

export function rowsOf(runs: readonly Run[]): readonly Row[] {
  const rows: { heading: readonly Json[]; runs: Run[] }[] = [];
  for (const run of runs) {
    const heading = run.values.slice(0, -1);
    const last = rows.at(-1);
    if (last?.heading.every((value, at) => value === heading[at])) last.runs.push(run);
    else rows.push({ heading, runs: [run] });
  }
  return rows;
}
