/** Computes each node's share of a job's time, and the chain of nodes that determines it. Pure. */
import { type Doc, linksOf, nodesOf } from "../../document/model";
import { runInside } from "../../jobs/inside";
import type { Job } from "../../jobs/job";

type Runs = Job["nodes"];

/** Returns the seconds of a node, including its inner nodes. */
export function secondsOf(runs: Runs, node: string): number {
  return (runs[node] ?? runInside(runs, node))?.seconds ?? 0;
}

export interface Heat {
  /** The sum over all nodes, and the maximum of one node. */
  readonly total: number;
  readonly most: number;
  /** The nodes of the longest dependency chain. */
  readonly path: ReadonlySet<string>;
  readonly links: ReadonlySet<number>;
  readonly pathSeconds: number;
}

const known = new WeakMap<Doc, { readonly runs: Runs; readonly at: string; readonly heat: Heat }>();

/** `at`: the prefix of the graph's node ids in a job. */
export function heatOf(graph: Doc, runs: Runs, at: string): Heat {
  const found = known.get(graph);
  if (found?.runs === runs && found.at === at) return found.heat;
  const heat = read(graph, runs, at);
  known.set(graph, { runs, at, heat });
  return heat;
}

function read(graph: Doc, runs: Runs, at: string): Heat {
  const own = new Map(nodesOf(graph).map(({ id }) => [id, secondsOf(runs, at + id)]));
  const ends = longestChains(graph, own);
  let last = "";
  for (const [id, { seconds }] of ends) if (seconds > (ends.get(last)?.seconds ?? 0)) last = id;
  const [path, links] = [new Set<string>(), new Set<number>()];
  for (let node = last; node !== "";) {
    path.add(node);
    const { link, from } = ends.get(node) ?? FIRST;
    if (from !== "") links.add(link);
    node = from;
  }
  const all = [...own.values()];
  return {
    total: all.reduce((sum, one) => sum + one, 0),
    most: Math.max(0, ...all),
    path,
    links,
    pathSeconds: ends.get(last)?.seconds ?? 0,
  };
}

/** The longest chain that ends with a node: its seconds, and the link and node before. */
interface ChainEnd {
  readonly seconds: number;
  readonly link: number;
  readonly from: string;
}

const FIRST: ChainEnd = { seconds: 0, link: -1, from: "" };

/** Visits nodes in topological order (Kahn); nodes of a cycle are on no chain. */
function longestChains(graph: Doc, own: ReadonlyMap<string, number>): Map<string, ChainEnd> {
  const links = linksOf(graph).filter(({ from, to }) => own.has(from) && own.has(to));
  const after = new Map<string, (typeof links)[number][]>();
  const open = new Map<string, number>();
  for (const link of links) {
    after.set(link.from, [...(after.get(link.from) ?? []), link]);
    open.set(link.to, (open.get(link.to) ?? 0) + 1);
  }
  const before = new Map<string, ChainEnd>();
  const ends = new Map<string, ChainEnd>();
  const ready = [...own.keys()].filter((id) => !open.has(id));
  for (let id = ready.pop(); id !== undefined; id = ready.pop()) {
    const best = before.get(id) ?? FIRST;
    const seconds = best.seconds + (own.get(id) ?? 0);
    ends.set(id, { ...best, seconds });
    for (const { id: link, to } of after.get(id) ?? []) {
      if (seconds > (before.get(to)?.seconds ?? 0)) before.set(to, { seconds, link, from: id });
      const left = (open.get(to) ?? 0) - 1;
      open.set(to, left);
      if (left === 0) ready.push(to);
    }
  }
  return ends;
}
