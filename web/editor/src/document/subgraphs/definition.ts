/** Builds the definition of a subgraph in ComfyUI's format v1.0, with its inputs and outputs. */
import type { JsonObject } from "../../json";
import type { DocNode } from "../model";
import { cornerOf } from "../parts";

/** The ids of a new subgraph's boundaries. */
export const BOUNDARIES = { inputs: "-10", outputs: "-20" } as const;

interface Named {
  readonly name: string;
  readonly type: string;
}

const GAP = 120;
const WIDTH = 120;

/**
 * Returns a definition without nodes, with boundaries at both sides of the nodes' later position.
 */
export function emptySubgraph(
  name: string,
  {
    nodes,
    inputs,
    outputs,
  }: {
    readonly nodes: readonly DocNode[];
    readonly inputs: readonly Named[];
    readonly outputs: readonly Named[];
  },
) {
  const { x, y } = cornerOf(nodes);
  const right = Math.max(...nodes.map((node) => node.x + node.width));
  const box = (left: number, slots: readonly Named[]) => [left, y, WIDTH, 40 + 24 * slots.length];
  return {
    id: crypto.randomUUID() as string,
    name,
    version: 1,
    revision: 0,
    config: {},
    state: { lastNodeId: 0, lastLinkId: 0, lastGroupId: 0, lastRerouteId: 0 },
    inputNode: { id: Number(BOUNDARIES.inputs), bounding: box(x - GAP - WIDTH, inputs) },
    outputNode: { id: Number(BOUNDARIES.outputs), bounding: box(right + GAP, outputs) },
    inputs: inputs.map(newSlot),
    outputs: outputs.map(newSlot),
    widgets: [],
    nodes: [],
    links: [],
    groups: [],
    extra: {},
  } satisfies JsonObject;
}

/** Returns an input or output of a subgraph without links. */
export function newSlot({ name, type }: Named): JsonObject {
  return { id: crypto.randomUUID(), name, type, linkIds: [] };
}

/** Returns the wanted name, with a number appended if it is taken. */
export function freeName(wanted: string, taken: ReadonlySet<string>): string {
  let name = wanted;
  for (let number = 2; taken.has(name); number++) name = `${wanted}_${number}`;
  return name;
}
