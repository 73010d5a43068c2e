import { expect, test } from "vitest";
import { alphaPixels, type Brush, drawPiece, emptyMask, fillFrom, inverted, maskOf } from "./mask";

const HARD: Brush = { radius: 3, hardness: 1, opacity: 1, erases: false };

function covered(values: Uint8ClampedArray): number {
  return values.filter((value) => value > 0).length;
}

test("P0.26 a stroke that leaves the image continues where it returns", () => {
  const mask = emptyMask(20, 10);
  drawPiece(mask, { x: 5, y: 5 }, { x: -40, y: 5 }, HARD);
  drawPiece(mask, { x: -40, y: 5 }, { x: 5, y: 9 }, HARD);
  expect(mask.values[5 * 20]).toBe(255); // at the image's edge
  expect(mask.values[5 * 20 + 12]).toBe(0);
});

test("P0.26 overlapping segments of a soft stroke stay within its opacity; an eraser removes them", () => {
  const soft = { radius: 4, hardness: 0, opacity: 0.5, erases: false };
  const mask = emptyMask(16, 16);
  for (let again = 0; again < 5; again++) drawPiece(mask, { x: 8, y: 8 }, { x: 9, y: 8 }, soft);
  const most = Math.max(...mask.values);
  expect(most).toBeGreaterThan(100);
  expect(most).toBeLessThanOrEqual(128);
  drawPiece(mask, { x: 0, y: 8 }, { x: 16, y: 8 }, { ...HARD, radius: 9, erases: true });
  expect(covered(mask.values)).toBe(0);
});

test("P0.26 a fill stops at painted pixels; inverting twice, or a PNG, restores the mask", () => {
  const mask = emptyMask(12, 12);
  drawPiece(mask, { x: 6, y: -2 }, { x: 6, y: 14 }, { ...HARD, radius: 1 });
  const wall = covered(mask.values);
  fillFrom(mask, { x: 1, y: 1 });
  expect(covered(mask.values)).toBe(wall + 5 * 12);
  expect(inverted(inverted(mask))).toEqual(mask);
  expect(maskOf(alphaPixels(mask), 12, 12)).toEqual(mask);
});
