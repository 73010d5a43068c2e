import { expect, test } from "vitest";
import type { Job, MeasuredSpan } from "./job";
import { loadOf, recentWork, WINDOW_S } from "./load";

const span = (device: string, kind: string, start: number, seconds: number): MeasuredSpan => ({
  device,
  kind,
  target: "v0.1",
  peer: kind === "send" ? "cpu:1" : "",
  start,
  seconds,
  evaluation: 1,
});
const job = (status: Job["status"], spans: readonly MeasuredSpan[]) =>
  ({ status, spans: { "5": spans } }) as unknown as Job;

test("P1.16 the load is the share of the last seconds in which a device computed", () => {
  const spans = [
    span("cpu:0", "segment", 0, 2), // only its end is in the window
    span("cpu:0", "segment", 8, 2),
    span("cpu:0", "segment", 9, 2), // overlaps
    span("cpu:0", "send", 3, 5),
  ];
  const work = recentWork([job("running", spans), job("completed", spans)]).get("cpu:0") ?? [];
  expect(work.map(({ start, seconds }) => [start, seconds])).toEqual([
    [0, 1],
    [7, 2],
    [8, 2],
    [2, 5],
  ]);
  expect(work[3]?.what).toBe("send v0.1 to cpu:1");
  expect(loadOf(work)).toBeCloseTo(4 / WINDOW_S);
  expect(recentWork([job("completed", spans)]).size).toBe(0);
  expect(loadOf([])).toBe(0);
});
