/** Reads the planner's plan (`katz plan --json`) for drawing, without further computation. Pure. */

import { fieldsOf, listOf, numberFrom, textOf, textsOf } from "../../json";
import type {
  DescribedCall,
  DescribedEdge,
  DescribedLink,
  DescribedOperation,
  DescribedPlan,
  DescribedPrediction,
  DescribedSegment,
  DescribedSpan,
  DescribedTimeline,
  DescribedVariant,
  HoistedCall,
} from "../../server/generated/messages";
import { type MessageFields, messageFields, readMessages } from "../../server/messageFields";

export interface Cell {
  readonly device: number;
  readonly segment: string;
  readonly stage: string;
  /** The number of batched calls of the stage, for example both branches of guidance. */
  readonly branches: number;
  readonly seconds: number;
  /** Whether its result is from the previous evaluation. */
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
  /** The index of the span that it waited for. */
  readonly after: number | null;
}

/** Two steady evaluations of the simulation, in seconds from their start. */
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
  /** The conditioning of the operation, positive or negative; "" without one. */
  readonly branch: string;
  /** The document node of the operation. */
  readonly node: string;
}

export interface PlanEdge {
  readonly from: string;
  readonly to: string;
  readonly input: string;
  readonly bytes: number;
  /** The age of the value in evaluations. */
  readonly delay: number;
  /** Whether the plan adds the delay. */
  readonly stale: boolean;
}

/** One call, for one operation or for several equal ones. */
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
  /** The id of the sampler node in the document. */
  readonly sampler: string;
  readonly evaluations: number;
  readonly owner: number;
  /** The ends of the step region, which edges also name. */
  readonly begin: string;
  readonly end: string;
  readonly operations: ReadonlyMap<string, Operation>;
  /** Calls before the loop, with their devices. */
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

/** Reads a plan, once for each plan object. */
export function planOf(raw: unknown): Plan {
  const described = messageFields<DescribedPlan>(raw);
  const plan = known.get(described) ?? read(described);
  known.set(described, plan);
  return plan;
}

function read(plan: MessageFields<DescribedPlan>): Plan {
  const devices = listOf(plan.devices).map(String);
  const delayed = new Set(listOf(plan.delayed).map(String));
  const variants = readMessages<DescribedVariant, Variant>(plan.variants, (one) =>
    variantOf(one, devices),
  );
  const prediction = messageFields<DescribedPrediction>(plan.prediction);
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
  const alternatives = Object.entries(fieldsOf(plan.alternatives))
    .map(([name, value]) => ({ name, seconds: numberFrom(value), chosen: name === plan.chosen }))
    .sort((one, other) => one.seconds - other.seconds);
  return {
    devices,
    dtype: String(plan.dtype ?? ""),
    sampler: textOf(plan.sampler).split(".")[0] ?? "",
    evaluations: numberFrom(plan.evaluations),
    owner: devices.indexOf(textOf(plan.owner)),
    begin: textOf(plan.begin),
    end: textOf(plan.end),
    operations: new Map(readMessages(plan.operations, operationOf).map((one) => [one.id, one])),
    before: readMessages<HoistedCall, Plan["before"][number]>(plan.before, (one) => ({
      ...callOf(one),
      device: devices.indexOf(textOf(one.device)),
    })),
    beforeEdges: readMessages(plan.before_edges, edgeOf),
    variants,
    links: readMessages<DescribedLink, Link>(plan.links, (one) => ({
      from: devices.indexOf(textOf(one.from)),
      to: devices.indexOf(textOf(one.to)),
      bytesPerSecond: numberFrom(one.bytes_per_second),
      latency: numberFrom(one.latency_seconds),
    })),
    cells,
    planned: numberFrom(prediction.planned_seconds),
    ideal: numberFrom(prediction.ideal_seconds),
    sequential: numberFrom(prediction.sequential_seconds),
    period: numberFrom(prediction.period_seconds),
    binding: String(prediction.binding ?? ""),
    alternatives,
    notes: listOf(plan.notes).map(String),
    timeline: plan.timeline ? timelineOf(messageFields<DescribedTimeline>(plan.timeline)) : null,
  };
}

function operationOf(one: MessageFields<DescribedOperation>): Operation {
  return {
    id: textOf(one.id),
    label: textOf(one.label),
    stage: textOf(one.stage),
    branch: textOf(one.branch),
    node: textOf(one.node),
  };
}

function edgeOf(one: MessageFields<DescribedEdge>): PlanEdge {
  return {
    from: textOf(one.from),
    to: textOf(one.to),
    input: textOf(one.input),
    bytes: numberFrom(one.bytes),
    delay: numberFrom(one.delay),
    stale: one.stale === true,
  };
}

function callOf(one: MessageFields<DescribedCall>): Call {
  return {
    operations: textsOf(one.operations),
    stage: textOf(one.stage),
    seconds: numberFrom(one.seconds),
  };
}

function variantOf(one: MessageFields<DescribedVariant>, devices: readonly string[]): Variant {
  return {
    name: textOf(one.name),
    evaluations: listOf(one.evaluations).map((each) => numberFrom(each)),
    edges: readMessages(one.edges, edgeOf),
    segments: readMessages<DescribedSegment, Segment>(one.segments, (segment) => ({
      name: textOf(segment.name),
      device: devices.indexOf(textOf(segment.device)),
      calls: readMessages(segment.calls, callOf),
    })),
  };
}

function timelineOf(one: MessageFields<DescribedTimeline>): Timeline {
  const rows = listOf(one.rows).map(String);
  return {
    seconds: numberFrom(one.seconds),
    first: numberFrom(one.first),
    boundaries: listOf(one.boundaries).map((each) => numberFrom(each)),
    rows,
    spans: readMessages<DescribedSpan, Span>(one.spans, (span) => ({
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
