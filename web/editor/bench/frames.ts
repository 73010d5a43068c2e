/** Reads out of a browser's trace what the page's main thread worked in each frame. */
import type { Browser, Page } from "@playwright/test";

const CATEGORIES = [
  "toplevel",
  "devtools.timeline",
  "devtools.timeline.frame",
  "disabled-by-default-devtools.timeline.frame",
  "benchmark",
];
const TASKS = new Set(["RunTask", "ThreadControllerImpl::RunTask"]);

interface Traced {
  readonly name: string;
  readonly ph: string;
  readonly ts: number; // microseconds
  readonly dur?: number;
  readonly tdur?: number; // of the processor
  readonly pid: number;
  readonly tid: number;
  readonly args?: { readonly name?: string };
}

/**
 * Milliseconds of work: of each frame, and of the longest tasks. `processor95`, `processor99` and `processorTask`: what of
 * it the processor spent, without what was waited for on a busy machine.
 */
export interface Work {
  readonly frames: number;
  readonly p50: number;
  readonly p95: number;
  readonly p99: number;
  readonly processor95: number;
  readonly processor99: number;
  readonly longestTask: number;
  readonly processorTask: number;
}

/** Traces a gesture. */
export async function worked(browser: Browser, page: Page, gesture: () => Promise<void>) {
  await page.waitForTimeout(500);
  await browser.startTracing(page, { categories: CATEGORIES });
  await gesture();
  const { traceEvents } = JSON.parse((await browser.stopTracing()).toString());
  return workOf(traceEvents);
}

function workOf(events: readonly Traced[]): Work {
  const tasks = events.filter((event) => event.ph === "X" && TASKS.has(event.name));
  const main = busiest(
    events.filter((event) => event.args?.name === "CrRendererMain"),
    tasks,
  );
  const own = tasks.filter((event) => event.pid === main.pid && event.tid === main.tid);
  const begins = events
    .filter(
      ({ name, pid, tid }) =>
        name === "BeginMainThreadFrame" && pid === main.pid && tid === main.tid,
    )
    .map((event) => event.ts)
    .sort((one, other) => one - other);
  const work = byFrame(begins, own, ({ dur = 0 }) => dur);
  const processor = byFrame(begins, own, ({ tdur = 0 }) => tdur);
  return {
    frames: work.length,
    p50: quantile(work, 0.5),
    p95: quantile(work, 0.95),
    p99: quantile(work, 0.99),
    processor95: quantile(processor, 0.95),
    processor99: quantile(processor, 0.99),
    longestTask: Math.max(...own.map((task) => (task.dur ?? 0) / 1000)),
    processorTask: Math.max(...own.map((task) => (task.tdur ?? 0) / 1000)),
  };
}

/** What the tasks of each frame took together, in milliseconds, least first. */
function byFrame(
  begins: readonly number[],
  tasks: readonly Traced[],
  taken: (task: Traced) => number,
): readonly number[] {
  const work = new Array<number>(Math.max(0, begins.length - 1)).fill(0);
  let frame = 0;
  for (const task of [...tasks].sort((one, other) => one.ts - other.ts)) {
    while (frame < work.length && task.ts >= (begins[frame + 1] ?? 0)) frame += 1;
    if (frame < work.length && task.ts >= (begins[0] ?? 0)) {
      work[frame] = (work[frame] ?? 0) + taken(task) / 1000;
    }
  }
  return work.sort((one, other) => one - other);
}

function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN;
}

/** The main thread of the page, of those of all pages that the browser has. */
function busiest(threads: readonly Traced[], tasks: readonly Traced[]): Traced {
  const spent = (thread: Traced) =>
    tasks
      .filter(({ pid, tid }) => pid === thread.pid && tid === thread.tid)
      .reduce((sum, task) => sum + (task.dur ?? 0), 0);
  const [first, ...others] = threads;
  if (first === undefined) throw new Error("the trace names no main thread");
  return others.reduce((one, other) => (spent(other) > spent(one) ? other : one), first);
}
