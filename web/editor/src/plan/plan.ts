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

export interface Operation {
  readonly id: string;
  readonly label: string;
  readonly stage: string;
  /** The conditioning that it belongs to: positive, negative; "" for none. */
  readonly branch: string;
  /** The node of the document that it stands for. */
  readonly node: string;
}

export interface PlanEdge {
  readonly from: string;
  readonly to: string;
  readonly input: string;
  readonly bytes: number;
  /** How many evaluations ago the value was made. */
  readonly delay: number;
  /** Whether the plan delays what the workflow does not. */
  readonly stale: boolean;
}

/** One call, of several equal operations where there is more than one. */
export interface Call {
  readonly operations: readonly string[];
  readonly stage: string;
  readonly seconds: number;
}

export interface Segment {
  readonly name: string;
  readonly device: number;
  readonly calls: readonly Call[];
}

/** One kind of evaluation. */
export interface Variant {
  readonly name: string;
  readonly evaluations: readonly number[];
  readonly edges: readonly PlanEdge[];
  readonly segments: readonly Segment[];
}

export interface Link {
  readonly from: number;
  readonly to: number;
  readonly bytesPerSecond: number;
  readonly latency: number;
}

export interface Plan {
  /** The node of the document that samples. */
  readonly sampler: string;
  readonly evaluations: number;
  readonly owner: number;
  /** The ends of the step region, which edges name as well. */
  readonly begin: string;
  readonly end: string;
  readonly operations: ReadonlyMap<string, Operation>;
  /** Calls that precede the loop, each with its device. */
  readonly before: readonly (Call & { readonly device: number })[];
  readonly beforeEdges: readonly PlanEdge[];
  readonly variants: readonly Variant[];
  readonly links: readonly Link[];
  readonly devices: readonly string[];
  readonly dtype: string;
  readonly cells: readonly Cell[];
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

/** Numbers of messages may be bigint. */
function seconds(value: unknown): number {
  return typeof value === "number" ? value : typeof value === "bigint" ? Number(value) : 0;
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

const known = new WeakMap<object, Plan>();

/** Reads a plan, once for each that was told. */
export function planOf(raw: unknown): Plan {
  const told = fields(raw);
  const plan = known.get(told) ?? read(told);
  known.set(told, plan);
  return plan;
}

function read(told: Fields): Plan {
  const devices = list(told.devices).map(String);
  const delayed = new Set(list(told.delayed).map(String));
  const variants = list(told.variants).map((raw) => variantOf(fields(raw), devices));
  const prediction = fields(told.prediction);
  const cells = (variants[0]?.segments ?? []).flatMap((segment) =>
    segment.calls.map((call): Cell => {
      return {
        device: segment.device,
        segment: segment.name,
        stage: call.stage,
        branches: call.operations.length,
        seconds: call.seconds,
        stale: call.operations.some((operation) => delayed.has(operation)),
      };
    }),
  );
  const alternatives = Object.entries(fields(told.alternatives))
    .map(([name, value], number) => ({ name, seconds: seconds(value), chosen: number === 0 }))
    .sort((one, other) => one.seconds - other.seconds);
  return {
    devices,
    dtype: String(told.dtype ?? ""),
    sampler: text(told.sampler).split(".")[0] ?? "",
    evaluations: seconds(told.evaluations),
    owner: devices.indexOf(text(told.owner)),
    begin: text(told.begin),
    end: text(told.end),
    operations: new Map(
      list(told.operations)
        .map((raw) => operationOf(fields(raw)))
        .map((one) => [one.id, one]),
    ),
    before: list(told.before)
      .map(fields)
      .map((raw) => ({ ...callOf(raw), device: devices.indexOf(text(raw.device)) })),
    beforeEdges: list(told.before_edges).map((raw) => edgeOf(fields(raw))),
    variants,
    links: list(told.links)
      .map(fields)
      .map((raw) => ({
        from: devices.indexOf(text(raw.from)),
        to: devices.indexOf(text(raw.to)),
        bytesPerSecond: seconds(raw.bytes_per_second),
        latency: seconds(raw.latency_seconds),
      })),
    cells,
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

function operationOf(told: Fields): Operation {
  return {
    id: text(told.id),
    label: text(told.label),
    stage: text(told.stage),
    branch: text(told.branch),
    node: text(told.node),
  };
}

function edgeOf(told: Fields): PlanEdge {
  return {
    from: text(told.from),
    to: text(told.to),
    input: text(told.input),
    bytes: seconds(told.bytes),
    delay: seconds(told.delay),
    stale: told.stale === true,
  };
}

function callOf(told: Fields): Call {
  return {
    operations: list(told.operations).map(text),
    stage: text(told.stage),
    seconds: seconds(told.seconds),
  };
}

function variantOf(told: Fields, devices: readonly string[]): Variant {
  return {
    name: text(told.name),
    evaluations: list(told.evaluations).map(seconds),
    edges: list(told.edges).map((raw) => edgeOf(fields(raw))),
    segments: list(told.segments)
      .map(fields)
      .map((raw) => ({
        name: text(raw.name),
        device: devices.indexOf(text(raw.device)),
        calls: list(raw.calls).map((call) => callOf(fields(call))),
      })),
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
