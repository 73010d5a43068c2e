/** Computes the paths of the boxes, titles and device bars of nodes. */
import { type Box, boundsOf } from "../../document/layout/alignment";
import { boxOf } from "../bounds";
import { type Drawn, TITLE } from "../layout";

/**
 * `frames` and `others`: paths of groups and of all other nodes. `heads`: paths of node titles by
 * colour, "" for the theme's colour.
 */
export interface BoxPaths {
  readonly all: Box;
  readonly frames: string;
  readonly others: string;
  readonly heads: ReadonlyMap<string, string>;
}

/** The width of a device bar and its distance from both ends, as in `.device-bar`. */
const [BAR, APART] = [5, 3];

export function boxPaths(nodes: readonly Drawn[]): BoxPaths {
  const boxes = nodes.map(boxOf);
  const of = (frames: boolean) =>
    boxes
      .filter((_, at) => (nodes[at]?.type === "frame") === frames)
      .map(boxPath)
      .join("");
  const heads = new Map<string, string>();
  for (const one of nodes) {
    if (one.type !== "card" || one.data.node.mode !== 0) continue; // muted, bypassed: drawn paler
    const { colour } = one.data.node;
    heads.set(colour, (heads.get(colour) ?? "") + boxPath({ ...boxOf(one), height: TITLE }));
  }
  return { all: boundsOf(boxes), frames: of(true), others: of(false), heads };
}

/** Returns the paths of device bars by device. `placesOf`: seconds on each device for a node. */
export function barPaths(
  nodes: readonly Drawn[],
  placesOf: (id: string) => ReadonlyMap<number, number>,
): ReadonlyMap<number, string> {
  const found = new Map<number, string>();
  for (const node of nodes) {
    const places = placesOf(node.id);
    const all = [...places.values()].reduce((sum, seconds) => sum + seconds, 0) || 1;
    const { x, y, height } = boxOf(node);
    let from = y + TITLE + APART;
    for (const [device, seconds] of places) {
      const part = ((height - TITLE - 2 * APART) * seconds) / all;
      const bar = boxPath({ x: x + 1, y: from, width: BAR, height: part });
      found.set(device, (found.get(device) ?? "") + bar);
      from += part;
    }
  }
  return found;
}

export function boxPath({ x, y, width, height }: Box): string {
  return `M${x},${y}h${width}v${height}h${-width}z`;
}
