/** Computes the measured work of devices in the last seconds of running jobs. Pure. */
import type { Job, MeasuredSpan } from "./job";

/** The length of the window in seconds. */
export const WINDOW_S = 10;
const COMPUTING = ["segment", "prepare"];

export interface Work {
  /** Seconds from the start of the window. */
  readonly start: number;
  readonly seconds: number;
  readonly what: string;
  readonly computes: boolean;
}

/** Returns the work of running jobs by device. The window ends with each job's last span. */
export function recentWork(jobs: readonly Job[]): ReadonlyMap<string, readonly Work[]> {
  const found = new Map<string, Work[]>();
  for (const job of jobs) {
    if (job.status !== "running") continue;
    const spans = Object.values(job.spans).flat();
    const from = Math.max(0, ...spans.map(({ start, seconds }) => start + seconds)) - WINDOW_S;
    for (const span of spans) {
      const work = within(span, from);
      if (work !== null) found.set(span.device, [...(found.get(span.device) ?? []), work]);
    }
  }
  return found;
}

function within(span: MeasuredSpan, from: number): Work | null {
  const start = Math.max(span.start, from);
  const seconds = span.start + span.seconds - start;
  if (seconds <= 0) return null;
  const to = span.peer === "" ? "" : ` to ${span.peer}`;
  return {
    start: start - from,
    seconds,
    what: `${span.kind} ${span.target}${to}`,
    computes: COMPUTING.includes(span.kind),
  };
}

/** Returns the share of the window in which a device computed, from 0 to 1; overlaps count once. */
export function loadOf(work: readonly Work[]): number {
  let until = 0;
  let busy = 0;
  for (const { start, seconds } of work
    .filter(({ computes }) => computes)
    .sort((one, other) => one.start - other.start)) {
    busy += Math.max(0, start + seconds - Math.max(start, until));
    until = Math.max(until, start + seconds);
  }
  return Math.min(1, busy / WINDOW_S);
}
