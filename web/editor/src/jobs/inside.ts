/** Tells what a subgraph's node shows of the nodes inside of it, whose ids begin with its own. */
import type { Job, NodeRun } from "./job";

type Runs = Job["nodes"];

const known = new WeakMap<Runs, Map<string, NodeRun | null>>();

/** What a job tells of a node, or of what is inside of it. */
export function runOf(job: Job | null, node: string, isSubgraph: boolean): NodeRun | undefined {
  if (job === null) return undefined;
  return job.nodes[node] ?? (isSubgraph ? runInside(job.nodes, node) : null) ?? undefined;
}

/** That something in it failed or runs, else the seconds of all; null before anything ran. */
export function runInside(runs: Runs, node: string): NodeRun | null {
  const read = known.get(runs) ?? new Map<string, NodeRun | null>();
  known.set(runs, read);
  const found = read.get(node);
  if (found !== undefined) return found;
  const made = summary(Object.entries(runs).flatMap(([id, run]) => (isIn(id, node) ? [run] : [])));
  read.set(node, made);
  return made;
}

function summary(runs: readonly NodeRun[]): NodeRun | null {
  const first = runs[0];
  if (first === undefined) return null;
  const told =
    runs.find(({ phase }) => phase === "failed") ??
    runs.findLast(({ phase }) => phase === "running");
  if (told !== undefined) return told;
  return {
    ...first,
    phase: runs.every(({ phase }) => phase === "cached") ? "cached" : "done",
    seconds: runs.reduce((sum, { seconds }) => sum + seconds, 0),
    why: `${runs.length} nodes inside`,
  };
}

/** What the first node inside has for people. */
export function outputsInside(job: Job, node: string): Job["outputs"][string] | undefined {
  const id = Object.keys(job.outputs).find((one) => isIn(one, node));
  return id === undefined ? undefined : job.outputs[id];
}

export function isIn(id: string, node: string): boolean {
  return id.startsWith(`${node}:`);
}
