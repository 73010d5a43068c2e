/** Parses typed numbers. */
import { numberFrom } from "../json";
import type { Widget } from "./catalog";
import { evaluated } from "./expression";

/** Returns the value clamped to the widget's bounds, with exact integers; null if it is invalid. */
export function parsedNumber(
  text: string,
  widget: Pick<Widget, "whole" | "options">,
): number | bigint | null {
  const value = evaluated(text);
  if (value === null) return null;
  const { min, max } = widget.options;
  if (!widget.whole) {
    const least = min === undefined ? Number.NEGATIVE_INFINITY : numberFrom(min);
    const most = max === undefined ? Number.POSITIVE_INFINITY : numberFrom(max);
    return Math.min(most, Math.max(least, Number(value)));
  }
  let whole = typeof value === "bigint" ? value : BigInt(Math.round(value));
  const least = wholeBound(min, Math.ceil);
  const most = wholeBound(max, Math.floor);
  if (least !== null && whole < least) whole = least;
  if (most !== null && whole > most) whole = most;
  return Number.isSafeInteger(Number(whole)) ? Number(whole) : whole;
}

function wholeBound(bound: unknown, round: (value: number) => number): bigint | null {
  if (typeof bound === "bigint") return bound;
  return typeof bound === "number" && Number.isFinite(bound) ? BigInt(round(bound)) : null;
}
