/** Reads and writes colours as widgets have them: `#rrggbb`, or a whole number 0xRRGGBB. */
import type { Json } from "../json";

const COLOUR = /^#([0-9a-f]{3}|[0-9a-f]{6}|[0-9a-f]{8})$/i;
const MOST = 0xffffff;

/** A typed colour as it is kept; null for what is none. The `#` may be left out. */
export function parsedColour(text: string): string | null {
  const plain = `#${text.trim().replace(/^#/, "")}`;
  return COLOUR.test(plain) ? plain.toLowerCase() : null;
}

/** A value as the browser picks colours, `#rrggbb`; null for what is no colour. */
export function pickedOf(value: Json): string | null {
  if (typeof value === "number" || typeof value === "bigint") {
    const inside = value >= 0 && value <= MOST && Number.isInteger(Number(value));
    return inside ? `#${value.toString(16).padStart(6, "0")}` : null;
  }
  const full = typeof value === "string" ? parsedColour(value) : null;
  if (full === null) return null;
  return full.length === 4 ? full.replace(/[0-9a-f]/g, "$&$&") : full.slice(0, 7);
}

/** How well one colour is told from another, from 1 to 21 (WCAG 2). Both are `#rrggbb`. */
export function contrastOf(one: string, other: string): number {
  const [dark = 0, bright = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (bright + 0.05) / (dark + 0.05);
}

/** Black or white, whichever is easier to read on a colour. */
export function inkOn(colour: string): string {
  return contrastOf(colour, "#000000") > contrastOf(colour, "#ffffff") ? "#000" : "#fff";
}

/** The relative luminance of WCAG 2. */
function luminance(colour: string): number {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => {
    const part = Number.parseInt(colour.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** The value for a picked colour, in the form of the one before; its opacity stays. */
export function valueOf(picked: string, before: Json): Json {
  if (typeof before === "number" || typeof before === "bigint")
    return Number.parseInt(picked.slice(1), 16);
  return picked + (typeof before === "string" && before.length === 9 ? before.slice(7) : "");
}
