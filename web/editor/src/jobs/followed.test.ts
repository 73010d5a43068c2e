import { expect, test } from "vitest";
import { followed, needed, resultOf } from "./followed";
import { type Job, type Jobs, NO_JOBS } from "./job";
import { blank } from "./reducer";

const pictures = (filename: string) => ({ images: [{ filename }] });

function jobsOf(parts: readonly (Partial<Job> & { readonly id: string })[]): Jobs {
  const all = parts.map((part) => [part.id, { ...blank(part.id, 0), ...part }]);
  const places = { third: 1, fourth: 0 };
  return { byId: Object.fromEntries(all), queue: { ...NO_JOBS.queue, places } };
}

const ENDED = { status: "completed", started: 1, ended: 2 } as const;
const RUNNING = { status: "running", started: 3 } as const;
const RUNS = ["first", "second", "third", "fourth"];

test("P0.28 the first running job is shown and stopped, however many wait [defect E1]", () => {
  const jobs = jobsOf([
    { id: "first", ...ENDED },
    { id: "second", ...RUNNING },
    { id: "third" },
    { id: "fourth" },
  ]);
  const { active, latest, shown, queued } = followed(jobs, RUNS);
  expect([active?.id, latest?.id, shown?.id, queued]).toEqual(["second", "second", "second", 2]);
  expect(followed(jobs, RUNS)).toBe(followed(jobs, RUNS));
});

test("P0.29 while all jobs wait, the last ended one is shown, and the next one stopped [defect E2]", () => {
  const jobs = jobsOf([{ id: "first", ...ENDED }, { id: "third" }, { id: "fourth" }]);
  const { active, latest, shown } = followed(jobs, RUNS);
  expect([active?.id, latest?.id, shown?.id]).toEqual(["fourth", "fourth", "first"]);
  const cancelled = jobsOf([
    { id: "first", ...ENDED },
    { id: "third", status: "cancelled", ended: 4 },
  ]);
  const after = followed(cancelled, RUNS);
  expect([after.active, after.latest?.id, after.shown?.id]).toEqual([null, "third", "first"]);
  const refused = jobsOf([
    { id: "first", ...ENDED },
    { id: "third", status: "failed", ended: 4, error: { message: "no", node: "5" } },
  ]);
  expect(followed(refused, RUNS).shown?.id).toBe("third");
});

test("P0.29 a node shows its newest result, and the jobs of such results are retained [defect E3]", () => {
  const jobs = jobsOf([
    { id: "first", ...ENDED, outputs: { "9": pictures("a"), "12:3": pictures("b") } },
    { id: "second", ...ENDED, started: 3, ended: 4, outputs: { "9": pictures("c") } },
    { id: "third", ...ENDED, started: 5, ended: 6, status: "cancelled" },
    { id: "fourth", ...RUNNING, started: 7 },
  ]);
  const own = followed(jobs, RUNS);
  expect(resultOf(own, "9")).toEqual(pictures("c"));
  expect(resultOf(own, "12")).toEqual(pictures("b"));
  expect(resultOf(own, "5")).toBeUndefined();
  expect(needed(jobs, RUNS)).toEqual(["first", "second", "fourth"]);
  expect(needed(jobs, ["first", "forgotten"])).toEqual(["first"]);
});
