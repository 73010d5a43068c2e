/** Reads and writes colours of widgets: `#rrggbb` or an integer 0xRRGGBB. */
import type { Json } from "../json";

const COLOUR = /^#([0-9a-f]{3}|[0-9a-f]{6}|[0-9a-f]{8})$/i;
const MAX_COLOUR = 0xffffff;

/** Parses a typed colour, with or without `#`; null if invalid. */
export function parsedColour(text: string): string | null {
  const plain = `#${text.trim().replace(/^#/, "")}`;
  return COLOUR.test(plain) ? plain.toLowerCase() : null;
}

/** Returns a value as `#rrggbb` for the browser's colour picker; null if it is not a colour. */
export function pickedOf(value: Json): string | null {
  if (typeof value === "number" || typeof value === "bigint") {
    const inside = value >= 0 && value <= MAX_COLOUR && Number.isInteger(Number(value));
    return inside ? `#${value.toString(16).padStart(6, "0")}` : null;
  }
  const full = typeof value === "string" ? parsedColour(value) : null;
  if (full === null) return null;
  return full.length === 4 ? full.replace(/[0-9a-f]/g, "$&$&") : full.slice(0, 7);
}

/** Returns the contrast of two `#rrggbb` colours, from 1 to 21 (WCAG 2). */
export function contrastOf(one: string, other: string): number {
  const [dark = 0, bright = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (bright + 0.05) / (dark + 0.05);
}

/** Returns black or white, whichever has more contrast to a colour. */
export function inkOn(colour: string): string {
  return contrastOf(colour, "#000000") > contrastOf(colour, "#ffffff") ? "#000" : "#fff";
}

/** Returns the relative luminance as in WCAG 2. */
function luminance(colour: string): number {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => {
    const part = Number.parseInt(colour.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Returns the value of a picked colour in the form of the previous value, with its alpha. */
export function valueOf(picked: string, before: Json): Json {
  if (typeof before === "number" || typeof before === "bigint")
    return Number.parseInt(picked.slice(1), 16);
  return picked + (typeof before === "string" && before.length === 9 ? before.slice(7) : "");
}
