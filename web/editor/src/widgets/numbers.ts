/** Reads numbers as people type them. */
import type { Widget } from "../catalog/catalog";
import { numberFrom } from "../json";

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const WHOLE = /^[+-]?\d+$/;

/** Returns the value within the widget's bounds, whole numbers exactly; null for what is none. */
export function parsedNumber(
  text: string,
  widget: Pick<Widget, "whole" | "options">,
): number | bigint | null {
  const plain = text.trim().replace(",", ".");
  const { min, max } = widget.options;
  if (widget.whole) {
    if (!WHOLE.test(plain))
      return NUMBER.test(plain) ? bounded(Math.round(Number(plain)), widget) : null;
    let value = BigInt(plain);
    if (typeof min === "number" || typeof min === "bigint")
      value = value < BigInt(Math.ceil(Number(min))) ? BigInt(Math.ceil(Number(min))) : value;
    const most =
      typeof max === "bigint" ? max : typeof max === "number" ? BigInt(Math.floor(max)) : null;
    if (most !== null && value > most) value = most;
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  }
  return NUMBER.test(plain) ? bounded(Number(plain), widget) : null;
}

function bounded(value: number, { options: { min, max } }: Pick<Widget, "options">): number {
  const least = min === undefined ? Number.NEGATIVE_INFINITY : numberFrom(min);
  const most = max === undefined ? Number.POSITIVE_INFINITY : numberFrom(max);
  return Math.min(most, Math.max(least, value));
}
