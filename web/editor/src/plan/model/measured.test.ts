import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import type { MeasuredSpan } from "../../jobs/job";
import { marksOf, placesOf } from "./marks";
import { bars, compared } from "./measured";
import { planOf } from "./plan";

const PLAN = planOf(
  JSON.parse(readFileSync(new URL("./fixtures/controlnet_by_hand.json", import.meta.url), "utf8")),
);

function span(evaluation: number | null, given: Partial<MeasuredSpan> = {}): MeasuredSpan {
  const start = 1 + 0.02 * (evaluation ?? 0);
  const rest = { device: "cpu:0", kind: "segment", target: "v0.1", peer: "", seconds: 0.01 };
  return { ...rest, start, evaluation, ...given };
}

test("P0.38 each segment has its median measured time, and a mark if the prediction is far off", () => {
  const [segment] = PLAN.variants[0]?.segments ?? [];
  if (segment === undefined) throw new Error("no segment");
  const predicted = segment.calls.reduce((sum, { seconds }) => sum + seconds, 0);
  const times = [1.1, 1, 9].map((factor) => factor * predicted);
  const near = times.map((seconds, at) => span(at, { target: segment.name, seconds }));
  const [told, ...others] = compared(PLAN, near);
  expect(told).toMatchObject({ segment: segment.name, measured: 1.1 * predicted, far: false });
  expect(others.every(({ measured }) => measured === null)).toBe(true);
  const slow = [span(0, { target: segment.name, seconds: 1.3 * predicted })];
  expect(compared(PLAN, slow)[0]?.far).toBe(true);
});

test("P0.36 measured bars show the predicted evaluations, or the last two before these are complete", () => {
  const spans = Array.from({ length: 12 }, (_, at) => span(at));
  const sent = span(6, { kind: "send", peer: "cpu:1", target: "x", start: 1.13, seconds: 0.001 });
  const all = [span(null, { kind: "load" }), ...spans, sent];
  const shown = bars(all, 6);
  expect(shown.map(({ evaluation, row }) => [evaluation, row])).toEqual([
    [6, "cpu:0"],
    [7, "cpu:0"],
    [6, "cpu:0 -> cpu:1"],
  ]);
  expect(shown[0]?.start).toBe(0);
  expect(shown[1]?.start).toBeCloseTo(0.02);
  expect(bars(spans.slice(0, 5), 6).map(({ evaluation }) => evaluation)).toEqual([2, 3]);
  expect(bars([], 6)).toEqual([]);
});

test("P0.34 nodes of a loop drawn by hand have seconds and a share; a batched call is divided", () => {
  const marks = marksOf(PLAN);
  expect(marks.has(PLAN.sampler)).toBe(false);
  const total = [...marks.values()].reduce((sum, { seconds }) => sum + seconds, 0);
  const calls = PLAN.variants[0]?.segments.flatMap((segment) => segment.calls) ?? [];
  expect(total).toBeCloseTo(calls.reduce((sum, { seconds }) => sum + seconds, 0));
  expect(marks.get("32")).toMatchObject({ batched: 2 });
  expect(marks.get("32")?.share).toBeCloseTo((marks.get("32")?.seconds ?? 0) / PLAN.period);
});

test("P0.34 a node's bar shows its seconds on each device, for samplers and loops drawn by hand", () => {
  expect([...(placesOf(PLAN).get("32")?.keys() ?? [])]).toEqual([1]);
  const coarse = planOf(
    JSON.parse(readFileSync(new URL("./fixtures/controlnet_lora.json", import.meta.url), "utf8")),
  );
  const places = placesOf(coarse).get(coarse.sampler);
  expect([...(places?.keys() ?? [])].sort()).toEqual([0, 1]);
  const calls = coarse.variants[0]?.segments.flatMap((segment) => segment.calls) ?? [];
  const total = [...(places?.values() ?? [])].reduce((sum, seconds) => sum + seconds, 0);
  expect(total).toBeCloseTo(calls.reduce((sum, { seconds }) => sum + seconds, 0));
});
