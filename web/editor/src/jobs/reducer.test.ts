import { describe, expect, test } from "vitest";
import { outputsInside } from "./inside";
import { type Jobs, NO_JOBS } from "./job";
import { blank, reduce, reported, sent, trimmed } from "./reducer";

const event = (fields: object) => ({ type: "event", event: { job: "j", ...fields } });
const EVENTS = [
  event({ kind: "started", at: 10 }),
  event({ kind: "cached", nodes: ["1"], at: 10 }),
  event({ kind: "node_started", node: "5.end", display: "5", type: "KSampler" }),
  event({ kind: "plan_made", node: "5.end", plan: { sampler: "5" } }),
  event({ kind: "progress", node: "5.end", display: "5", value: 3, maximum: 20 }),
];
const DONE = [
  event({
    kind: "node_done",
    node: "5.end",
    display: "5",
    seconds: 1.5,
    why: "new",
    cached: false,
  }),
  event({ kind: "warned", message: "a line" }),
  event({
    kind: "ended",
    status: "completed",
    at: 12,
    outputs: { "97:9": { images: [{ filename: "a.png" }] } },
  }),
];

function heardAll(jobs: Jobs, frames: readonly unknown[]): Jobs {
  return frames.reduce<Jobs>(reduce, jobs);
}

describe("jobs", () => {
  test("P0.29 nodes are waiting, running, cached and done, with progress and seconds", () => {
    const running = heardAll(sent(NO_JOBS, "j", 9), EVENTS).byId.j;
    expect(running?.status).toBe("running");
    expect(running?.nodes["1"]?.phase).toBe("cached");
    expect(running?.nodes["5"]).toMatchObject({ phase: "running", value: 3, maximum: 20 });
    expect(running?.plans["5"]).toEqual({ sampler: "5" });
    const done = heardAll(sent(NO_JOBS, "j", 9), [...EVENTS, ...DONE]).byId.j;
    expect(done).toMatchObject({ status: "completed", ended: 12, warnings: ["a line"] });
    expect(done?.nodes["5"]).toMatchObject({ phase: "done", seconds: 1.5, why: "new" });
    expect(done && outputsInside(done, "97")).toEqual({ images: [{ filename: "a.png" }] });
  });

  test("P0.32 a snapshot and the later events give the same state as all events", () => {
    const whole = heardAll(sent(NO_JOBS, "j", 9), [...EVENTS, ...DONE]).byId.j;
    const snapshot = {
      type: "snapshot",
      queue: { running: 1, pending: 0, paused: false, places: {} },
      jobs: [
        {
          id: "j",
          status: "in_progress",
          created: 9,
          started: 10,
          ended: null,
          predicted: null,
          result: null,
          state: {
            started: 10,
            nodes: {
              "1": {
                display: "1",
                status: "finished",
                value: 1,
                maximum: 1,
                cached: true,
                seconds: 0,
                why: "",
                ui: null,
              },
              "5.end": {
                display: "5",
                status: "running",
                value: 3,
                maximum: 20,
                cached: false,
                seconds: 0,
                why: "",
                ui: null,
              },
            },
            plans: { "5.end": { sampler: "5" } },
            timeline: [],
            warnings: [],
            preview: null,
          },
        },
      ],
    };
    expect(heardAll(NO_JOBS, [snapshot, ...DONE]).byId.j).toEqual(whole);
  });

  test("P0.32 a job that is newer than a snapshot still receives its events", () => {
    const early = { type: "snapshot", queue: {}, jobs: [] };
    const done = { type: "event", event: { kind: "ended", job: "j", status: "completed", at: 3 } };
    const known = heardAll(sent(NO_JOBS, "j", 1), [early, done]);
    expect(known.byId.j?.status).toBe("completed");
    expect(heardAll(known, [early]).byId.j).toBeUndefined();
    const queued = { type: "queue", places: { j: 0 } };
    expect(heardAll(sent(NO_JOBS, "j", 1), [queued, early]).byId.j).toBeUndefined();
  });

  test("P0.36 a sampler's spans are the same from events, a snapshot and a report", () => {
    const told = (name: string) => ({
      node: "5.end",
      segments: [{ device: "cpu:0", kind: "segment", target: name, start: 1, seconds: 2n }],
    });
    const begun = sent(NO_JOBS, "j", 9);
    const heard = heardAll(begun, [
      event({ kind: "timeline", ...told("v0.0") }),
      event({ kind: "timeline", ...told("v0.1") }),
    ]).byId.j?.spans;
    expect(heard?.["5"]?.map(({ target, seconds }) => [target, seconds])).toEqual([
      ["v0.0", 2],
      ["v0.1", 2],
    ]);
    const timeline = [told("v0.0"), told("v0.1")];
    const state = { nodes: {}, plans: {}, timeline, warnings: [], preview: null };
    const snapshot = { type: "snapshot", queue: {}, jobs: [{ id: "j", created: 9, state }] };
    expect(heardAll(NO_JOBS, [snapshot]).byId.j?.spans).toEqual(heard);
    const report = { job: "j", plans: { "5.end": { sampler: "5" } }, timeline, nodes: {} };
    expect(reported(begun, report).byId.j).toMatchObject({
      spans: heard,
      plans: { "5": { sampler: "5" } },
    });
    expect(reported(begun, { ...report, job: "other" })).toBe(begun);
  });

  test("rule 4: events of an unknown job change nothing", () => {
    expect(heardAll(NO_JOBS, EVENTS)).toBe(NO_JOBS);
  });

  test("a failed node is marked as failed instead of running", () => {
    const failed = heardAll(sent(NO_JOBS, "j", 9), [
      ...EVENTS,
      event({
        kind: "ended",
        status: "failed",
        at: 11,
        error: { message: "no", node: "5.x", display: "5" },
      }),
    ]).byId.j;
    expect(failed).toMatchObject({ status: "failed", error: { message: "no", node: "5" } });
    expect(failed?.nodes["5"]?.phase).toBe("failed");
  });

  test("a job that is queued again loses its progress", () => {
    const running = heardAll(sent(NO_JOBS, "j", 9), EVENTS);
    const again = reduce(running, {
      type: "queue",
      running: 0,
      pending: 1,
      paused: false,
      places: { j: 0 },
    });
    expect(again.byId.j).toMatchObject({ status: "pending", nodes: {} });
  });
});

test("P0.29 the newest ended jobs, the jobs of documents and running jobs are retained", () => {
  const all = Array.from({ length: 40 }, (_, number) => ({
    ...blank(`j${number}`, number),
    ended: number === 3 ? null : 100 + number,
  }));
  const jobs: Jobs = { ...NO_JOBS, byId: Object.fromEntries(all.map((job) => [job.id, job])) };
  const kept = Object.keys(trimmed(jobs, new Set(["j0"])).byId);
  expect(kept).toEqual(["j0", "j3", ...Array.from({ length: 8 }, (_, one) => `j${32 + one}`)]);
  expect(trimmed(jobs, new Set(Object.keys(jobs.byId)))).toBe(jobs);
});
