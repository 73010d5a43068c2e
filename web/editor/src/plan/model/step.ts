/**
 * Lays out an evaluation: a lane per device, its segments from left to right in the order in which
 * they can start, calls before the loop at the left. Each call and edge of the plan is drawn once.
 * Pure.
 */
import type { Call, Plan, PlanEdge, Variant } from "./plan";

export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** An operation as drawn. An operation computed on two devices is drawn twice. */
export interface DrawnOperation extends Box {
  readonly key: string;
  readonly id: string;
  readonly call: string;
  readonly device: number;
}

/** A call with its operations; several form a batch. */
export interface DrawnCall extends Box {
  readonly key: string;
  readonly stage: string;
  readonly seconds: number;
  readonly operations: readonly string[];
}

export interface DrawnSegment extends Box {
  readonly name: string;
  readonly device: number;
  readonly seconds: number;
  /** Whether the segment precedes the loop. */
  readonly hoisted: boolean;
}

export interface DrawnEdge extends PlanEdge {
  readonly key: string;
  /** Whether the value is computed before the loop. */
  readonly hoisted: boolean;
  readonly source: string;
  readonly target: string;
  /** The transfer between devices; null on one device. */
  readonly transfer: {
    readonly from: number;
    readonly to: number;
    readonly seconds: number;
  } | null;
}

export interface Step {
  readonly operations: readonly DrawnOperation[];
  readonly calls: readonly DrawnCall[];
  readonly segments: readonly DrawnSegment[];
  readonly edges: readonly DrawnEdge[];
  readonly lanes: readonly (Box & { readonly device: number })[];
  /** The ends of the step region, where control passes from the sampler and back. */
  readonly begin: Box;
  readonly end: Box;
}

const ROW = 30;
const WIDTH = 168;
/** The width of calls before the loop. */
const THIN = 118;
const HEAD = 22;
const PAD = 8;
const GAP = 46;
const LANE_GAP = 34;
const END = { width: 92, height: 40 };

interface Group {
  readonly name: string;
  readonly device: number;
  readonly calls: readonly Call[];
  readonly hoisted: boolean;
}

export function stepOf(plan: Plan, number: number): Step {
  const variant = plan.variants[number];
  const hoisted = beforeGroups(plan);
  const loop = (variant?.segments ?? []).map((segment) => ({ ...segment, hoisted: false }));
  const edges = [...plan.beforeEdges, ...(variant?.edges ?? [])];

  const devices = [...new Set([...hoisted, ...loop].map(({ device }) => device))].sort();
  const tops = new Map<number, number>();
  let below = 0;
  const lanes = devices.map((device) => {
    const most = Math.max(
      1,
      ...[...hoisted, ...loop]
        .filter((group) => group.device === device)
        .flatMap(({ calls }) => calls.map(({ operations }) => operations.length)),
    );
    const [y, height] = [below, most * ROW + 2 * HEAD + 3 * PAD];
    tops.set(device, y);
    below += height + LANE_GAP;
    return { device, y, height };
  });

  const drawn: DrawnOperation[] = [];
  const calls: DrawnCall[] = [];
  const segments: DrawnSegment[] = [];
  const place = (group: Group, x: number): number => {
    const y = (tops.get(group.device) ?? 0) + PAD / 2;
    const width = group.hoisted ? THIN : WIDTH;
    let right = x + PAD;
    for (const [number, call] of group.calls.entries()) {
      const key = `${group.name}/${number}`;
      const height = HEAD + call.operations.length * ROW + PAD / 2;
      calls.push({
        key,
        stage: call.stage,
        seconds: call.seconds,
        operations: call.operations,
        x: right,
        y: y + HEAD,
        width,
        height,
      });
      for (const [row, id] of call.operations.entries())
        drawn.push({
          key: `${key}/${id}`,
          id,
          call: key,
          device: group.device,
          x: right + PAD / 2,
          y: y + 2 * HEAD + row * ROW,
          width: width - PAD,
          height: ROW - 4,
        });
      right += width + PAD;
    }
    const most = Math.max(...group.calls.map(({ operations }) => operations.length));
    segments.push({
      name: group.name,
      device: group.device,
      hoisted: group.hoisted,
      seconds: group.calls.reduce((sum, { seconds }) => sum + seconds, 0),
      x,
      y,
      width: right - x,
      height: 2 * HEAD + most * ROW + PAD * 1.5,
    });
    return right;
  };

  const before = Math.max(0, ...hoisted.map((group) => place(group, 0)));
  const begin = { x: before + (hoisted.length > 0 ? GAP : 0), y: -END.height - 16, ...END };
  const after = columns(loop, variant?.edges ?? [], begin.x + END.width + GAP, place);
  const end = { x: after + GAP, y: begin.y, ...END };
  return {
    operations: drawn,
    calls,
    segments,
    edges: edges.map((edge, place) => drawnEdge(edge, place, plan, drawn)),
    lanes: lanes.map((lane) => ({ ...lane, x: -GAP, width: end.x + END.width + 2 * GAP })),
    begin,
    end,
  };
}

/** Groups the calls before the loop by device. */
function beforeGroups({ before, devices }: Plan): readonly Group[] {
  return devices.flatMap((name, device) => {
    const calls = before.filter((call) => call.device === device);
    return calls.length === 0
      ? []
      : [{ name: `before the loop on ${name}`, device, calls, hoisted: true }];
  });
}

/** Places each group after the groups that it reads and after the previous one on its device. */
function columns(
  groups: readonly Group[],
  edges: readonly PlanEdge[],
  left: number,
  place: (group: Group, x: number) => number,
): number {
  const ends = new Map<string, number>();
  const free = new Map<number, number>();
  let right = left;
  for (const group of groups) {
    const own = new Set(group.calls.flatMap(({ operations }) => operations));
    const read = edges
      .filter(({ to, from, delay }) => delay === 0 && own.has(to) && !own.has(from))
      .map(({ from }) => ends.get(from) ?? left);
    const x = Math.max(left, free.get(group.device) ?? left, ...read);
    const end = place(group, x) + GAP;
    for (const id of own) ends.set(id, end);
    free.set(group.device, end);
    right = Math.max(right, end - GAP);
  }
  return right;
}

export const BEGIN = "begin";
export const FINISH = "end";

function drawnEdge(
  edge: PlanEdge,
  number: number,
  plan: Plan,
  drawn: readonly DrawnOperation[],
): DrawnEdge {
  const targets = drawn.filter(({ id }) => id === edge.to);
  const target = targets[0];
  const to = target?.device ?? plan.owner;
  const sources = drawn.filter(({ id }) => id === edge.from);
  const source = sources.find(({ device }) => device === to) ?? sources[0];
  const from = source?.device ?? plan.owner;
  const link = plan.links.find((one) => one.from === from && one.to === to);
  return {
    ...edge,
    key: `${number} ${edge.from} ${edge.to} ${edge.input}`,
    hoisted: plan.before.some(({ operations }) => operations.includes(edge.from)),
    source: source?.key ?? BEGIN,
    target: target?.key ?? FINISH,
    transfer:
      from === to
        ? null
        : {
            from,
            to,
            seconds: link === undefined ? 0 : link.latency + edge.bytes / link.bytesPerSecond,
          },
  };
}

/** Returns the index of an evaluation's variant. */
export function variantAt(plan: Plan, evaluation: number): number {
  const found = plan.variants.findIndex((one: Variant) => one.evaluations.includes(evaluation));
  return Math.max(0, found);
}
