/**
 * Reads the plan that the planner wrote (`katz plan --json`) for drawing. What is shown is told
 * there, and nothing is computed anew. Pure.
 */

export interface Cell {
  readonly device: number;
  readonly segment: string;
  readonly stage: string;
  /** How many calls of the stage are one, as for both branches of guidance. */
  readonly branches: number;
  readonly seconds: number;
  /** Whether its result is that of the evaluation before. */
  readonly stale: boolean;
}

export interface Alternative {
  readonly name: string;
  readonly seconds: number;
  readonly chosen: boolean;
}

export interface Span {
  readonly row: number;
  readonly what: string;
  readonly stage: string;
  readonly evaluation: number | null;
  readonly start: number;
  readonly seconds: number;
  /** The span that it waited for, by its place. */
  readonly after: number | null;
}

/** Two steady evaluations of the simulation, with times from their begin on. */
export interface Timeline {
  readonly seconds: number;
  readonly first: number;
  readonly boundaries: readonly number[];
  readonly rows: readonly string[];
  readonly spans: readonly Span[];
}

export interface Plan {
  readonly devices: readonly string[];
  readonly dtype: string;
  readonly cells: readonly Cell[];
  readonly variants: number;
  readonly hoisted: number;
  readonly planned: number;
  readonly ideal: number;
  readonly sequential: number;
  readonly period: number;
  readonly binding: string;
  readonly alternatives: readonly Alternative[];
  readonly notes: readonly string[];
  readonly timeline: Timeline | null;
}

type Fields = Readonly<Record<string, unknown>>;

function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null ? (value as Fields) : {};
}

function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

function seconds(value: unknown): number {
  return typeof value === "number" ? value : 0;
}

export function planOf(raw: unknown): Plan {
  const told = fields(raw);
  const devices = list(told.devices).map(String);
  const delayed = new Set(list(told.delayed).map(String));
  const variants = list(told.variants).map(fields);
  const prediction = fields(told.prediction);
  const cells = list(variants[0]?.segments)
    .map(fields)
    .flatMap((segment) =>
      list(segment.calls)
        .map(fields)
        .map((call): Cell => {
          const operations = list(call.operations).map(String);
          return {
            device: devices.indexOf(String(segment.device)),
            segment: String(segment.name),
            stage: String(call.stage),
            branches: operations.length,
            seconds: seconds(call.seconds),
            stale: operations.some((operation) => delayed.has(operation)),
          };
        }),
    );
  const alternatives = Object.entries(fields(told.alternatives))
    .map(([name, value], number) => ({ name, seconds: seconds(value), chosen: number === 0 }))
    .sort((one, other) => one.seconds - other.seconds);
  return {
    devices,
    dtype: String(told.dtype ?? ""),
    cells,
    variants: variants.length,
    hoisted: list(told.hoisted).length,
    planned: seconds(prediction.planned_seconds),
    ideal: seconds(prediction.ideal_seconds),
    sequential: seconds(prediction.sequential_seconds),
    period: seconds(prediction.period_seconds),
    binding: String(prediction.binding ?? ""),
    alternatives,
    notes: list(told.notes).map(String),
    timeline: told.timeline ? timelineOf(fields(told.timeline)) : null,
  };
}

function timelineOf(told: Fields): Timeline {
  const rows = list(told.rows).map(String);
  return {
    seconds: seconds(told.seconds),
    first: seconds(told.first),
    boundaries: list(told.boundaries).map(seconds),
    rows,
    spans: list(told.spans)
      .map(fields)
      .map((span) => ({
        row: rows.indexOf(String(span.resource)),
        what: String(span.what),
        stage: String(span.stage),
        evaluation: typeof span.evaluation === "number" ? span.evaluation : null,
        start: seconds(span.start),
        seconds: seconds(span.seconds),
        after: typeof span.after === "number" ? span.after : null,
      })),
  };
}

const SHORT: Readonly<Record<string, string>> = {
  unet_encoder: "enc",
  unet_mid: "mid",
  unet_decoder: "dec",
  controlnet: "cn",
  guidance: "cfg",
};

export function shortName(stage: string): string {
  return SHORT[stage] ?? stage.replaceAll("_", " ");
}

/** Writes a time with the unit that reads best. */
export function timeText(value: number): string {
  if (value >= 1) return `${value.toFixed(2)} s`;
  return value >= 0.001 ? `${(1e3 * value).toFixed(1)} ms` : `${(1e6 * value).toFixed(0)} µs`;
}
