/**
 * Selects, among a document's jobs, the one that Stop ends, the one that the canvas shows, and
 * those whose results stay. Pure.
 */
import { outputsInside } from "./inside";
import type { Job, Jobs } from "./job";

export interface Followed {
  /** The job that Stop ends: the first running one, else the next in the queue. */
  readonly active: Job | null;
  /** The number of other jobs of the document that run or wait. */
  readonly queued: number;
  /** The job whose state the toolbar shows: the active one, else the last that ended. */
  readonly latest: Job | null;
  /**
   * The job whose progress, errors, plans and times are shown: the first running one, else the last
   * that ended. Jobs cancelled in the queue are skipped, because they have none of these.
   */
  readonly shown: Job | null;
  /** The started jobs, newest first. */
  readonly started: readonly Job[];
}

export type Outputs = Job["outputs"][string];

const known = new WeakMap<Jobs, WeakMap<readonly string[], Followed>>();

/** `runs`: the ids of the document's jobs in the order of submission. */
export function followed(jobs: Jobs, runs: readonly string[]): Followed {
  const read = known.get(jobs) ?? new WeakMap<readonly string[], Followed>();
  known.set(jobs, read);
  const found = read.get(runs) ?? follow(jobs, runs);
  read.set(runs, found);
  return found;
}

function follow({ byId, queue }: Jobs, runs: readonly string[]): Followed {
  const own = runs.flatMap((id) => byId[id] ?? []);
  const place = ({ id }: Job) => queue.places[id] ?? Number.MAX_SAFE_INTEGER; // not queued yet
  const running = sortedBy(own.filter(hasStatus("running")), ({ started }) => started ?? 0);
  const pending = sortedBy(own.filter(hasStatus("pending")), place);
  const ended = sortedBy(
    own.filter((job) => job.ended !== null),
    (job) => job.ended ?? 0,
  );
  const [active = null] = [...running, ...pending];
  const ran = ended.filter(({ started, error }) => started !== null || error !== null);
  return {
    active,
    queued: Math.max(0, running.length + pending.length - 1),
    latest: active ?? ended.at(-1) ?? null,
    shown: running[0] ?? ran.at(-1) ?? null,
    started: sortedBy(
      own.filter(({ started }) => started !== null),
      ({ started }) => started ?? 0,
    ).toReversed(),
  };
}

/** Returns the newest result of a node or, for a subgraph node, of its inner nodes. */
export function resultOf({ started }: Followed, node: string): Outputs | undefined {
  for (const job of started) {
    const made = job.outputs[node] ?? outputsInside(job, node);
    if (made !== undefined) return made;
  }
  return undefined;
}

/** Returns the ids of the jobs that a document shows or waits for. */
export function needed(jobs: Jobs, runs: readonly string[]): readonly string[] {
  const { latest, shown, started } = followed(jobs, runs);
  const sources = new Map<string, string>();
  for (const { id, outputs } of started.toReversed())
    for (const node of Object.keys(outputs)) sources.set(node, id);
  const ids = new Set([latest?.id, shown?.id, ...sources.values()]);
  return runs.filter((id) => ids.has(id) || jobs.byId[id]?.ended === null);
}

function hasStatus(status: Job["status"]) {
  return (job: Job) => job.status === status;
}

/** Sorts jobs; equal ones stay in the order of submission. */
function sortedBy(jobs: readonly Job[], by: (job: Job) => number): readonly Job[] {
  return jobs.toSorted((one, other) => by(one) - by(other));
}
