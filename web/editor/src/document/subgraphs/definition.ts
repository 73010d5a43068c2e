/** The definition of a subgraph as ComfyUI's format v1.0 stores it, and its inputs and outputs. */
import type { JsonObject } from "../../json";
import type { DocNode } from "../model";
import { cornerOf } from "../parts";

/** The ids of a new subgraph's own inputs and outputs inside of it. */
export const BOUNDARIES = { inputs: "-10", outputs: "-20" } as const;

interface Named {
  readonly name: string;
  readonly type: string;
}

const GAP = 120;
const WIDTH = 120;

/** A definition without nodes, with its inputs and outputs on both sides of where they will be. */
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

/** An input or output of a subgraph that nothing is linked to. */
export function newSlot({ name, type }: Named): JsonObject {
  return { id: crypto.randomUUID(), name, type, linkIds: [] };
}

/** A name that is not taken: the wanted one, else one with a number. */
export function freeName(wanted: string, taken: ReadonlySet<string>): string {
  let name = wanted;
  for (let number = 2; taken.has(name); number++) name = `${wanted}_${number}`;
  return name;
}
