import { expect, test } from "vitest";
import { boxAround, crosses, nearestPart, overlap, runsThrough } from "./geometry";

const SLOPE = [
  { x: 0, y: 0 },
  { x: 50, y: 10 },
  { x: 100, y: 60 },
];

test("P1.02 a stroke crosses a line only within the ends of both", () => {
  const across = (x: number, from: number, to: number) => [
    { x, y: from },
    { x, y: to },
  ];
  expect(crosses(across(80, 0, 100), SLOPE)).toBe(true);
  expect(crosses(across(80, 50, 100), SLOPE)).toBe(false);
  expect(crosses(across(120, 0, 100), SLOPE)).toBe(false);
  expect(crosses(SLOPE.slice(0, 1), SLOPE)).toBe(false);
});

test("P1.02 the segment of a line nearest to a point is found", () => {
  expect(nearestPart(SLOPE, { x: 20, y: 8 }).part).toBe(0);
  expect(nearestPart(SLOPE, { x: 90, y: 40 }).part).toBe(1);
  expect(nearestPart(SLOPE, { x: 0, y: 30 }).far).toBeCloseTo(29.4, 1);
});

test("P1.01 a line runs through a box that it enters, or crosses between two points", () => {
  expect(boxAround(SLOPE)).toEqual({ x: 0, y: 0, width: 100, height: 60 });
  expect(runsThrough(SLOPE, { x: 20, y: 0, width: 10, height: 20 })).toBe(true);
  expect(runsThrough(SLOPE, { x: 40, y: 0, width: 20, height: 20 })).toBe(true);
  expect(runsThrough(SLOPE, { x: 0, y: 30, width: 40, height: 30 })).toBe(false);
  expect(overlap(boxAround(SLOPE), { x: 101, y: 0, width: 5, height: 5 })).toBe(false);
});
