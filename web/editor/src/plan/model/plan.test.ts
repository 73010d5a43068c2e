import { expect, test } from "vitest";
import { planOf } from "./plan";
import { timeText } from "./words";

test("P0.38 a plan is read as it was written", () => {
  const plan = planOf({
    devices: ["cpu:0", "cpu:1"],
    dtype: "float32",
    delayed: ["5.controlnet1"],
    variants: [
      {
        segments: [
          {
            name: "v0.0",
            device: "cpu:1",
            calls: [
              {
                operations: ["5.controlnet1", "5.controlnet1#2"],
                stage: "controlnet",
                seconds: 0.01,
              },
            ],
          },
          {
            name: "v0.1",
            device: "cpu:0",
            calls: [{ operations: ["5.mid"], stage: "unet_mid", seconds: 0.002 }],
          },
        ],
      },
    ],
    alternatives: { "three devices": 0.399, "two devices": 0.4, "one device": 0.6 },
    chosen: "two devices", // the simplest of those equal within 1 %
    prediction: { planned_seconds: 0.4, period_seconds: 0.02, binding: "work on cpu:1" },
    notes: ["a note"],
    timeline: {
      first: 3,
      seconds: 0.04,
      boundaries: [0, 0.02, 0.04],
      rows: ["cpu:0", "cpu:0 -> cpu:1"],
      spans: [
        {
          resource: "cpu:0 -> cpu:1",
          what: "step",
          stage: "",
          evaluation: 3,
          start: 0,
          seconds: 0.001,
          after: null,
        },
      ],
    },
  });
  expect(plan.timeline?.spans).toEqual([
    { row: 1, what: "step", stage: "", evaluation: 3, start: 0, seconds: 0.001, after: null },
  ]);
  expect(plan.cells).toEqual([
    { device: 1, segment: "v0.0", stage: "controlnet", branches: 2, seconds: 0.01, stale: true },
    { device: 0, segment: "v0.1", stage: "unet_mid", branches: 1, seconds: 0.002, stale: false },
  ]);
  expect(plan.alternatives.map(({ name, chosen }) => [name, chosen])).toEqual([
    ["three devices", false],
    ["two devices", true],
    ["one device", false],
  ]);
  expect(plan).toMatchObject({ planned: 0.4, period: 0.02, notes: ["a note"] });
  expect(planOf(null).cells).toEqual([]);
});

test("times have the most readable unit", () => {
  expect([2.345, 0.0123, 0.00005].map(timeText)).toEqual(["2.35 s", "12.3 ms", "50 µs"]);
});
