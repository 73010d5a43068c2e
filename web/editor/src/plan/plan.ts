/**
 * Reads the plan that the planner wrote (`katz plan --json`) for drawing. What is shown is told
 * there, and nothing is computed anew. Pure.
 */

import { fieldsOf, type JsonObject, listOf, numberFrom, textOf, textsOf } from "../json";

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

const known = new WeakMap<object, Plan>();

/** Reads a plan, once for each that was told. */
export function planOf(raw: unknown): Plan {
  const told = fieldsOf(raw);
  const plan = known.get(told) ?? read(told);
  known.set(told, plan);
  return plan;
}

function read(told: JsonObject): Plan {
  const devices = listOf(told.devices).map(String);
  const delayed = new Set(listOf(told.delayed).map(String));
  const variants = listOf(told.variants).map((raw) => variantOf(fieldsOf(raw), devices));
  const prediction = fieldsOf(told.prediction);
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
  const alternatives = Object.entries(fieldsOf(told.alternatives))
    .map(([name, value]) => ({ name, seconds: numberFrom(value), chosen: name === told.chosen }))
    .sort((one, other) => one.seconds - other.seconds);
  return {
    devices,
    dtype: String(told.dtype ?? ""),
    sampler: textOf(told.sampler).split(".")[0] ?? "",
    evaluations: numberFrom(told.evaluations),
    owner: devices.indexOf(textOf(told.owner)),
    begin: textOf(told.begin),
    end: textOf(told.end),
    operations: new Map(
      listOf(told.operations)
        .map((raw) => operationOf(fieldsOf(raw)))
        .map((one) => [one.id, one]),
    ),
    before: listOf(told.before)
      .map(fieldsOf)
      .map((raw) => ({ ...callOf(raw), device: devices.indexOf(textOf(raw.device)) })),
    beforeEdges: listOf(told.before_edges).map((raw) => edgeOf(fieldsOf(raw))),
    variants,
    links: listOf(told.links)
      .map(fieldsOf)
      .map((raw) => ({
        from: devices.indexOf(textOf(raw.from)),
        to: devices.indexOf(textOf(raw.to)),
        bytesPerSecond: numberFrom(raw.bytes_per_second),
        latency: numberFrom(raw.latency_seconds),
      })),
    cells,
    planned: numberFrom(prediction.planned_seconds),
    ideal: numberFrom(prediction.ideal_seconds),
    sequential: numberFrom(prediction.sequential_seconds),
    period: numberFrom(prediction.period_seconds),
    binding: String(prediction.binding ?? ""),
    alternatives,
    notes: listOf(told.notes).map(String),
    timeline: told.timeline ? timelineOf(fieldsOf(told.timeline)) : null,
  };
}

function operationOf(told: JsonObject): Operation {
  return {
    id: textOf(told.id),
    label: textOf(told.label),
    stage: textOf(told.stage),
    branch: textOf(told.branch),
    node: textOf(told.node),
  };
}

function edgeOf(told: JsonObject): PlanEdge {
  return {
    from: textOf(told.from),
    to: textOf(told.to),
    input: textOf(told.input),
    bytes: numberFrom(told.bytes),
    delay: numberFrom(told.delay),
    stale: told.stale === true,
  };
}

function callOf(told: JsonObject): Call {
  return {
    operations: textsOf(told.operations),
    stage: textOf(told.stage),
    seconds: numberFrom(told.seconds),
  };
}

function variantOf(told: JsonObject, devices: readonly string[]): Variant {
  return {
    name: textOf(told.name),
    evaluations: listOf(told.evaluations).map((one) => numberFrom(one)),
    edges: listOf(told.edges).map((raw) => edgeOf(fieldsOf(raw))),
    segments: listOf(told.segments)
      .map(fieldsOf)
      .map((raw) => ({
        name: textOf(raw.name),
        device: devices.indexOf(textOf(raw.device)),
        calls: listOf(raw.calls).map((call) => callOf(fieldsOf(call))),
      })),
  };
}

function timelineOf(told: JsonObject): Timeline {
  const rows = listOf(told.rows).map(String);
  return {
    seconds: numberFrom(told.seconds),
    first: numberFrom(told.first),
    boundaries: listOf(told.boundaries).map((one) => numberFrom(one)),
    rows,
    spans: listOf(told.spans)
      .map(fieldsOf)
      .map((span) => ({
        row: rows.indexOf(String(span.resource)),
        what: String(span.what),
        stage: String(span.stage),
        evaluation: typeof span.evaluation === "number" ? span.evaluation : null,
        start: numberFrom(span.start),
        seconds: numberFrom(span.seconds),
        after: typeof span.after === "number" ? span.after : null,
      })),
  };
}
