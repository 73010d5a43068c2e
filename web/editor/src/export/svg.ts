/** Writes SVG. Texts are untrusted, so all of them are escaped here. Pure. */

export type Attributes = Readonly<Record<string, string | number>>;

/** Returns the colour of a CSS variable for an element with these classes. */
export type Paint = (variable: string, classes?: string) => string;

export interface Drawing {
  readonly width: number;
  readonly height: number;
  readonly svg: string;
}

const FONT = "Inter, system-ui, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";
const ENTITIES: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  '"': "&quot;",
};
const FORBIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu;
/**
 * The width of a letter relative to the font size, for wide letters: texts are cut early rather
 * than overflow.
 */
const LETTER = 0.62;

export function element(name: string, attributes: Attributes, ...inside: string[]): string {
  const given = Object.entries(attributes).map(([key, value]) => ` ${key}="${escaped(value)}"`);
  return `<${name}${given.join("")}>${inside.join("")}</${name}>`;
}

/** Writes a line of text, cut to a width. */
export function line(words: string, width: number, attributes: Attributes, size = 12): string {
  const most = Math.max(1, Math.floor(width / (LETTER * size)));
  const cut = words.length > most ? `${words.slice(0, most - 1)}…` : words;
  return element("text", { "font-size": size, ...attributes }, escaped(cut));
}

/** Breaks a text into at most `most` lines of a width. */
export function linesOf(words: string, width: number, most: number, size = 12): readonly string[] {
  const letters = Math.max(1, Math.floor(width / (LETTER * size)));
  const pattern = new RegExp(`.{1,${letters}}(?:\\s|$)|.{1,${letters}}|^$`, "g");
  return words
    .split("\n")
    .flatMap((one) => one.match(pattern) ?? [])
    .slice(0, most);
}

export function drawing(
  [x, y, width, height]: readonly [number, number, number, number],
  back: string,
  ...inside: string[]
): Drawing {
  const svg = element(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width,
      height,
      viewBox: `${x} ${y} ${width} ${height}`,
      "font-family": FONT,
    },
    element("rect", { x, y, width, height, fill: back }),
    ...inside,
  );
  return { width, height, svg };
}

export function escaped(value: string | number): string {
  return String(value)
    .replaceAll(FORBIDDEN, "")
    .replaceAll(/[&<>"]/g, (letter) => ENTITIES[letter] ?? "");
}
