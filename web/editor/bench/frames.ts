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
  readonly pid: number;
  readonly tid: number;
  readonly args?: { readonly name?: string };
}

/** Milliseconds of work: of each frame, and of the longest tasks. */
export interface Work {
  readonly frames: number;
  readonly p50: number;
  readonly p95: number;
  readonly p99: number;
  readonly longestTask: number;
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
  const work = new Array<number>(Math.max(0, begins.length - 1)).fill(0);
  let frame = 0;
  for (const task of own.sort((one, other) => one.ts - other.ts)) {
    while (frame < work.length && task.ts >= (begins[frame + 1] ?? 0)) frame += 1;
    if (frame < work.length && task.ts >= (begins[0] ?? 0)) {
      work[frame] = (work[frame] ?? 0) + (task.dur ?? 0) / 1000;
    }
  }
  const sorted = work.sort((one, other) => one - other);
  const at = (share: number) =>
    sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN;
  return {
    frames: work.length,
    p50: at(0.5),
    p95: at(0.95),
    p99: at(0.99),
    longestTask: Math.max(...own.map((task) => (task.dur ?? 0) / 1000)),
  };
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
