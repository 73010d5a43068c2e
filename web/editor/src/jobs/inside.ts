/** Summarises the inner nodes of a subgraph node, whose ids begin with its id. */
import type { Job, NodeRun } from "./job";

type Runs = Job["nodes"];

const known = new WeakMap<Runs, Map<string, NodeRun | null>>();

/** Returns a job's progress for a node or, for a subgraph node, for its inner nodes. */
export function runOf(job: Job | null, node: string, isSubgraph: boolean): NodeRun | undefined {
  if (job === null) return undefined;
  return job.nodes[node] ?? (isSubgraph ? runInside(job.nodes, node) : null) ?? undefined;
}

/**
 * Returns the progress of a failed or running inner node, else the total seconds; null if none ran.
 */
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
  const reportedRun =
    runs.find(({ phase }) => phase === "failed") ??
    runs.findLast(({ phase }) => phase === "running");
  if (reportedRun !== undefined) return reportedRun;
  return {
    ...first,
    phase: runs.every(({ phase }) => phase === "cached") ? "cached" : "done",
    seconds: runs.reduce((sum, { seconds }) => sum + seconds, 0),
    why: `${runs.length} nodes inside`,
  };
}

/** Returns the outputs of the first inner node with outputs. */
export function outputsInside(job: Job, node: string): Job["outputs"][string] | undefined {
  const id = Object.keys(job.outputs).find((one) => isIn(one, node));
  return id === undefined ? undefined : job.outputs[id];
}

export function isIn(id: string, node: string): boolean {
  return id.startsWith(`${node}:`);
}
